//go:build linux && cgo

package twohosts

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/hack/softroce"
)

// envSSH makes the test binary a program in the place of ssh, which has the test run its command on
// a host: it is the path of the test's socket.
const envSSH = "IBCONDUIT_TEST_SSH"

// sshMain sends host and command, and is then the command's standard input and output.
func sshMain(socket string, args []string) int {
	c, err := net.Dial("unix", socket)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 255
	}
	w := c.(*net.UnixConn)
	fmt.Fprintf(w, "%s\n%s\n", args[len(args)-2], args[len(args)-1])
	go func() {
		_, _ = io.Copy(w, os.Stdin)
		_ = w.CloseWrite()
	}()
	_, _ = io.Copy(os.Stdout, w)
	return 0
}

// serveSSH runs what sshMain asks for.
func serveSSH(t *testing.T, c *softroce.Cluster) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "ssh")
	ln, err := net.Listen("unix", socket)
	must(t, err)
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				var host int
				name, err := in.ReadString('\n')
				line, err2 := in.ReadString('\n')
				if _, err3 := fmt.Sscanf(name, "vm%d\n", &host); errors.Join(err, err2, err3) != nil {
					return
				}
				cmd, said := c.Host(host).Command("sh", "-c", line), &output{}
				cmd.Stdin, cmd.Stdout, cmd.Stderr = in, conn, said
				cmd.Env = []string{"PATH=/usr/bin:/bin"}
				if err := cmd.Run(t.Context()); err != nil {
					t.Errorf("%s: %v: %s", strings.TrimSpace(name), err, said)
				}
			}()
		}
	}()
	return socket
}

// byIbrun runs a job of four ranks on two hosts: shared memory joins those of one, the device the
// others.
func byIbrun(t *testing.T, c *softroce.Cluster) {
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", dir, "github.com/ibconduit/conduit/cmd/ibrun")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "ibrun"), "-H", "vm0:2,vm1:2", "-x", envProgram+"=exchange", "-x", envRounds+"=20", exe)
	cmd.Env = append(os.Environ(), fmt.Sprintf("IBCONDUIT_SSH=env %s=%s %s", envSSH, serveSSH(t, c), exe))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for r, host := range []string{"vm0", "vm0", "vm1", "vm1"} {
		if want := fmt.Sprintf("[%s %d] rank %d: done\n", host, r, r); !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if !strings.Contains(string(out), "[vm0 0] rank 0: reaches rank 1 over shm") || !strings.Contains(string(out), "reaches rank 2 over ibv") {
		t.Errorf("%s", out)
	}
}
