//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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
	if code != 1 || !strings.Contains(out, "inherited the variable but not the descriptor") {
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
