//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ibconduit/conduit"
)

// whole is a rank of a conduit job.
func whole() int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	j, err := conduit.Join(ctx, conduit.Config{SegmentSize: 1 << 16})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Printf("rank %d of %d\n", j.Rank(), j.Size())
	if err := errors.Join(j.Barrier(ctx), j.Close()); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// A container may show processes only in its /proc, or nothing.
func TestAJobRunsWithLittleOfProc(t *testing.T) {
	for what, mount := range map[string]string{
		"processes only": "mount -t proc -o subset=pid none /proc",
		"no meminfo":     "mount --bind /dev/null /proc/meminfo",
		"no boot id":     "mount -t tmpfs none /proc/sys",
	} {
		code, out := apart(t, "mpf", asRankToo("conduit"), "-n", "1", "true")
		if code != 0 {
			t.Skipf("no PID namespace: %s", out)
		}
		cmd := ibrun(t, asRankToo("conduit"))
		cmd.Path, _ = exec.LookPath("unshare")
		cmd.Args = []string{"unshare", "-mpf", "--mount-proc", "sh", "-c", mount + ` && exec "$R" -n 2 --env ` + asRank + `=conduit "$R"`}
		b, err := cmd.CombinedOutput()
		if err != nil || strings.Count(string(b), " of 2\n") != 2 {
			t.Errorf("%s: %v: %s", what, err, b)
		}
	}
}

// Two containers of one network, each with a user namespace of its own and root in it: they look
// alike, and shared memory does not join them. Nothing else does here, and both say why.
func TestUsersOfOtherNamespacesAreNotJoined(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("maps users of its choice into namespaces, which takes root")
	}
	port := 20000 + os.Getpid()%10000
	out := make(chan string)
	for rank := range 2 {
		cmd := ibrun(t, nil)
		cmd.Path, cmd.Args = "/proc/self/exe", []string{"rank"}
		cmd.Env = append(os.Environ(), asRank+"=conduit", fmt.Sprintf("IBCONDUIT_RANK=%d", rank), "IBCONDUIT_SIZE=2",
			fmt.Sprintf("IBCONDUIT_ADDR=127.0.0.1:%d", port), "IBCONDUIT_SECRET=0123456789abcdef0123456789abcdef")
		ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000 + rank, Size: 1}}
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids,
			Credential: &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: true}}
		go func() {
			b, _ := cmd.CombinedOutput()
			out <- string(b)
		}()
	}
	for range 2 {
		if text := <-out; !strings.Contains(text, "it is in another user namespace") || !strings.Contains(text, "verbs cannot be used") {
			t.Errorf("%s", text)
		}
	}
}
