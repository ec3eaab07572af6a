//go:build linux

package main

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// answered runs ibrun with a script that prints and then waits until $GO is there. It returns what
// arrives up to a text and, once that has arrived, the rest.
func answered(t *testing.T, until string, args ...string) (before, after string) {
	t.Helper()
	proceed := filepath.Join(t.TempDir(), "go")
	cmd := ibrun(t, []string{"GO=" + proceed}, args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout // as 2>&1
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(20*time.Second, func() { _ = os.WriteFile(proceed, nil, 0o600) })
	defer late.Stop()
	r := bufio.NewReader(out)
	for !strings.HasSuffix(before, until) {
		b, err := r.ReadByte()
		if err != nil {
			break
		}
		before += string(b)
	}
	if !late.Stop() {
		t.Errorf("%q came only when the rank went on, or ended: %q", until, before)
	}
	_ = os.WriteFile(proceed, nil, 0o600)
	rest, _ := io.ReadAll(r)
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v", err)
	}
	return before, string(rest)
}

const goOn = `while ! test -e $GO; do sleep 0.01; done; `

func TestAPromptIsNotKeptBack(t *testing.T) {
	prompt := `printf "name? "; ` + goOn + `echo thanks`
	for _, c := range []struct {
		args          []string
		before, after string
	}{
		{[]string{"sh", "-c", prompt}, "name? ", "thanks\n"},
		{[]string{"-n", "2", "--no-prefix", "sh", "-c", "test $IBCONDUIT_RANK = 1 || { " + prompt + "; }"}, "name? ", "thanks\n"},
		{[]string{"--prefix", "sh", "-c", prompt}, "[0] name? ", "thanks\n"},
		{[]string{"-n", "2", "sh", "-c", "test $IBCONDUIT_RANK = 1 || { " + prompt + "; }"}, "[0] name? ", "thanks\n"},
		{[]string{"-n", "2", "sh", "-c", `test $IBCONDUIT_RANK = 1 || { printf "10%%\r20%%\r"; ` + goOn + `printf "30%%\n"; }`}, "[0] 10%\r20%\r", "30%\n"},
	} {
		before, after := answered(t, c.before, c.args...)
		if before != c.before || after != c.after {
			t.Errorf("ibrun %q: %q and %q, want %q and %q", c.args, before, after, c.before, c.after)
		}
	}
}

// Rank 1 writes between the halves of a line of rank 0.
func TestTextOfAnotherRankBeginsANewLine(t *testing.T) {
	for _, to := range []string{"1", "2"} {
		before, after := answered(t, "[0] half, ", "-n", "2", "--env", "D="+t.TempDir(), "sh", "-c",
			`if test $IBCONDUIT_RANK = 0; then printf "half, "; while ! test -e $D/other; do sleep 0.01; done; sleep 0.3; echo whole
			else `+goOn+`echo other >&`+to+`; >$D/other; fi`)
		if before+after != "[0] half, \n[1] other\n[0] whole\n" {
			t.Errorf("to %s: %q", to, before+after)
		}
	}
}

func TestWithoutPrefixRanksHaveIbrunsOwnOutput(t *testing.T) {
	for _, args := range [][]string{nil, {"-n", "2", "--no-prefix"}} {
		dir := t.TempDir()
		out, err := os.Create(filepath.Join(dir, "out"))
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		errs, err := os.Create(filepath.Join(dir, "errs"))
		if err != nil {
			t.Fatal(err)
		}
		defer errs.Close()
		cmd := ibrun(t, nil, append(args, "sh", "-c", "readlink /proc/self/fd/1; readlink /proc/$$/fd/2 >&2")...)
		cmd.Stdout, cmd.Stderr = out, errs
		if err := cmd.Run(); err != nil {
			t.Error(err)
		}
		for _, f := range []*os.File{out, errs} {
			if text, _ := os.ReadFile(f.Name()); strings.Count(string(text), f.Name()+"\n") != max(len(args)-1, 1) {
				t.Errorf("ibrun %q: %s holds %q", args, f.Name(), text)
			}
		}
	}
}
