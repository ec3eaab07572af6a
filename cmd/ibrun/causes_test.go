//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// asRankToo are a rank's variables for a program that a shell of ibrun's starts.
func asRankToo(what string) []string { return []string{"R=" + self, "WHAT=" + what} }

const joins = asRank + `="$WHAT" "$R"`

func TestASecondProgramOfARankIsTold(t *testing.T) {
	code, out, errs := finish(t, asRankToo("exchange"), "-n", "2", "sh", "-c", joins+" && "+joins)
	if code != 1 || strings.Count(out, "another program of this rank has joined the job already") != 2 || strings.Contains(out, "0 bytes") {
		t.Errorf("code %d: %s%s", code, out, errs)
	}
	// Alone there is nobody to meet twice.
	code, out, errs = finish(t, asRankToo("exchange"), "sh", "-c", joins+" && "+joins)
	if code != 0 || strings.Count(out, "0 of 1 by launch") != 2 {
		t.Errorf("code %d: %s%s", code, out, errs)
	}
}

func TestAProgramThatARankStartedIsTold(t *testing.T) {
	code, out, errs := finish(t, asRankToo("exchange"), "-n", "2", "bash", "-c",
		"for fd in /proc/$$/fd/*; do fd=${fd##*/}; test $fd -lt 3 || eval \"exec $fd>&-\"; done; "+joins)
	if code != 1 || !strings.Contains(out, "inherited the variable but not the descriptor") || !strings.Contains(out, "must hand on its descriptors") {
		t.Errorf("code %d: %s%s", code, out, errs)
	}
}

func TestAProgramThatCannotStartSaysWhy(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		text, says string
	}{
		"interpreter": {"#!/no/such/interpreter\n", "interpreter after #!"},
		"data":        {"text\n", "no program for this machine"},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(c.text), 0o700); err != nil {
			t.Fatal(err)
		}
		if code, _, errs := finish(t, nil, path); code < 126 || !strings.Contains(errs, c.says) {
			t.Errorf("%s: code %d: %s", name, code, errs)
		}
	}
}

// What ibrun itself lacks is not the program's fault, nor a host's.
func TestObstaclesOfIbrunItself(t *testing.T) {
	dir := t.TempDir()
	for _, rank := range []string{"0", "1"} {
		if err := os.Mkdir(filepath.Join(dir, "rank-"+rank+".out"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--output", "/proc/none"}, 126, "ibrun: launch: the output's directory /proc/none: "},
		{[]string{"--output", "/proc/none", "-H", "a,b"}, 126, "ibrun: launch: the output's directory /proc/none: "},
		{[]string{"-n", "2", "--output", dir}, 1, "ibrun: launch: output of rank 0: open " + dir + "/rank-0.out: is a directory\n"},
	} {
		code, _, errs := finish(t, nil, append(x.args, "true")...)
		if code != x.code || !strings.HasPrefix(errs, x.want) || strings.Contains(errs, "(") {
			t.Errorf("%q: code %d: %s", x.args, code, errs)
		}
	}
	cmd := ibrun(t, nil)
	cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", `ulimit -n 16 && exec "$0" -n 2 true`, self}
	if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 126 || !strings.Contains(string(out), "raise ulimit -n") {
		t.Errorf("code %d: %s", cmd.ProcessState.ExitCode(), out)
	}
}

// A shell finds a program in such a PATH, too.
func TestAProgramInARelativePath(t *testing.T) {
	c := newCluster(t, "", direct)
	if err := os.WriteFile(filepath.Join(c.dir, "here"), []byte("#!/bin/sh\necho found\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"-n", "1", "here"}, {"-H", "a", "--no-prefix", "here"}} {
		for _, path := range []string{".", ""} {
			cmd := ibrun(t, append(c.env, "PATH="+path+":"+os.Getenv("PATH")), args...)
			cmd.Dir = c.dir
			if out, err := cmd.CombinedOutput(); err != nil || string(out) != "found\n" {
				t.Errorf("%q in %q: %v: %s", args, path, err, out)
			}
		}
	}
}

// One limit is met by many hosts: it is told of once.
func TestHostsBeyondTheDescriptorsAreToldOnce(t *testing.T) {
	ssh := filepath.Join(t.TempDir(), "ssh")
	if err := os.WriteFile(ssh, []byte("#!/bin/sh\nexec sleep 60\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	var hosts []string
	for i := range 24 {
		hosts = append(hosts, fmt.Sprintf("n%d", i))
	}
	cmd := ibrun(t, []string{"IBCONDUIT_SSH=" + ssh})
	cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", `ulimit -n 64 && exec "$0" -H "$1" true`, self, strings.Join(hosts, ",")}
	out, _ := cmd.CombinedOutput()
	if text := string(out); strings.Count(text, "too many open files") != 1 || !strings.Contains(text, "raise ulimit -n") {
		t.Errorf("code %d: %s", cmd.ProcessState.ExitCode(), text)
	}
}

// As a compiler's or a copy's that has not ended.
func TestAProgramThatIsBeingWrittenIsAwaited(t *testing.T) {
	name := filepath.Join(t.TempDir(), "program")
	text, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o700)
	if err == nil {
		_, err = f.Write(text)
	}
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(200*time.Millisecond, func() { _ = f.Close() })
	if code, _, errs := finish(t, nil, "-n", "2", name); code != 0 {
		t.Errorf("code %d: %s", code, errs)
	}
}
