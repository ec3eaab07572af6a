package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
)

// script writes an executable into dir.
func script(t *testing.T, dir, name, body string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+body), 0o755); err != nil {
		t.Fatal(err)
	}
}

// withPath runs the program with no other programs than those of a directory.
func withPath(t *testing.T, dir string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := program(t, args...)
	cmd.Env = append(cmd.Env, "PATH="+dir)
	return finish(t, cmd)
}

// The peer fails in the third round, and in its two repetitions.
func TestRoundsBeforeAFailureAreReported(t *testing.T) {
	dir, results := t.TempDir(), filepath.Join(t.TempDir(), "r.json")
	script(t, dir, "mpicc.openmpi", "exit 0")
	script(t, dir, "mpirun.openmpi", `if [ "$1" = --version ]; then echo "mpirun.openmpi (OpenRTE) 4.1.4"; exit; fi
read n <"$0.n"; echo $((n+1)) >"$0.n"; [ $n -lt 2 ] || exit 7; echo barrier 0 0 500 500`)
	if err := os.WriteFile(filepath.Join(dir, "mpirun.openmpi.n"), []byte("0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, errs, code := withPath(t, dir, "coll", "barrier", "--iters", "2", "--loop", "5", "--peer", "mpi", "-q", "-o", results)
	if code != exitSetup || !strings.Contains(errs, "round 5: ") || !strings.Contains(errs, "exit status 7") {
		t.Errorf("exit code %d: %s", code, errs)
	}
	if all, err := report.Read(results); err != nil || len(all) != 1 || len(all[0].Peer().Rounds) != 2 || all[0].Peer().Result.P["50"] != 100 {
		t.Errorf("%d series, %v", len(all), err)
	}
}

func TestPerftestRefusesALauncher(t *testing.T) {
	_, errs, code := underLauncher(t, 2, "perftest", "lat", "-q")
	if code != exitUsage || !strings.Contains(errs, "run it without a launcher") {
		t.Errorf("exit code %d: %s", code, errs)
	}
}
