//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// bash runs a script in which ibrun is $IBRUN, in a directory of its own, and returns what it
// prints.
func bash(t *testing.T, script string, env ...string) (out, dir string) {
	t.Helper()
	cmd := ibrun(t, append(env, "IBRUN="+self))
	cmd.Path, cmd.Args, cmd.Dir = "/bin/bash", []string{"bash", "-c", script}, t.TempDir()
	b, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v: %s", script, err, b)
	}
	return string(b), cmd.Dir
}

func TestInheritedDescriptorsKeepTheirNumbers(t *testing.T) {
	for _, fds := range [][]int{{3}, {4}, {3, 4, 5, 6, 7, 8, 9}, {9}, {200}, {5, 63}} {
		script, open := "", ""
		for _, fd := range fds {
			script += fmt.Sprintf("echo on %d from $IBCONDUIT_RANK >&%d; ", fd, fd)
			open += fmt.Sprintf(" %d>>log%d", fd, fd)
		}
		_, dir := bash(t, "$IBRUN -n 2 bash -c '"+script+"'"+open)
		for _, fd := range fds {
			text, _ := os.ReadFile(fmt.Sprintf("%s/log%d", dir, fd))
			if got := strings.Join(lines(string(text)), ", "); got != fmt.Sprintf("on %d from 0, on %d from 1", fd, fd) {
				t.Errorf("of %v, descriptor %d: %q", fds, fd, got)
			}
		}
	}
}

// The job's own descriptors have room even where the user's is the highest that there can be.
func TestTheHighestDescriptorMayBeTheUsers(t *testing.T) {
	out, dir := bash(t, "ulimit -n 64; $IBRUN -n 2 --env "+asRank+"=exchange $IBRUN 63>log; $IBRUN -n 2 bash -c 'echo text >&63' 63>>log")
	if text, _ := os.ReadFile(filepath.Join(dir, "log")); !strings.Contains(out, "[1] 1 of 2 by launch") || string(text) != "text\ntext\n" {
		t.Errorf("%s; the log holds %q", out, text)
	}
}

func TestAnEmptyEnvironmentSuffices(t *testing.T) {
	if out, _ := bash(t, "env -i "+asIbrun+"=1 $IBRUN -n 1 sh -c 'echo yes'"); out != "yes\n" {
		t.Errorf("%q", out)
	}
}

func TestARankReadsAProcessSubstitution(t *testing.T) {
	if out, _ := bash(t, `$IBRUN -n 1 cat <(echo one) <(echo two)`); out != "one\ntwo\n" {
		t.Errorf("%q", out)
	}
}

func TestAJobserverOfMakeReachesTheRanks(t *testing.T) {
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("make is not installed")
	}
	out, _ := bash(t, `printf 'all:\n\t+@$$IBRUN -n 2 $(MAKE) --no-print-directory -f Makefile sub\nsub:\n\t@echo made\n' >Makefile; make -j4`)
	if strings.Count(out, "made\n") != 2 || strings.Contains(out, "jobserver") {
		t.Errorf("%s", out)
	}
}

// A job inside a job: what the outer launcher gave to its rank is not for those of the inner one.
func TestAnInnerJobHasNoDescriptorsOfTheOuter(t *testing.T) {
	count := "sh -c 'set -- /proc/$$/fd/*; echo $#'"
	plain, _ := bash(t, "$IBRUN -n 1 "+count)
	inner, _ := bash(t, "$IBRUN -n 1 $IBRUN -n 1 "+count)
	if plain != inner {
		t.Errorf("%q descriptors in a job, %q in a job inside a job", plain, inner)
	}
}
