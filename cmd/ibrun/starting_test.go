//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A Ctrl-Z may stop a child before it runs its program, which the runtime waits for with one of
// its processors: that may be the only one, or a collection of garbage may wait for it.
func TestAChildStoppedBeforeItsProgram(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	ssh := filepath.Join(t.TempDir(), "ssh") // all hosts are this one
	if err := os.WriteFile(ssh, []byte("#!/bin/bash\nexec bash -c \"${@: -1}\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, env, args string
		hits            int
	}{
		{"rank 0", "GOGC=100", "-n 1", 1},
		{"one processor", "GOMAXPROCS=1", "-n 1", 1},
		{"collections", "GOGC=1", "-n 1", 3},
		{"hosts", "IBCONDUIT_SSH=" + ssh, "-H a,b,c,d,e,f", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			for hits, jobs := 0, 0; hits < c.hits; jobs++ {
				if jobs == 400 {
					t.Fatalf("in 400 jobs %d children were stopped before their program ran", hits)
				}
				job := ibrun(t, []string{c.env}, append(strings.Fields(c.args), "true")...)
				if c.args == "-n 1" {
					job.ExtraFiles = slices.Repeat([]*os.File{null}, 500) // they take a while
				}
				if err := job.Start(); err != nil {
					t.Fatal(err)
				}
				ended := make(chan error, 1)
				go func() { ended <- job.Wait() }()
				stopped := stopStarting(job.Process.Pid, t)
				select {
				case err := <-ended:
					if err != nil {
						t.Fatal(err)
					}
				case <-time.After(20 * time.Second):
					_ = syscall.Kill(stopped, syscall.SIGCONT)
					<-ended
					t.Fatalf("child %d was stopped before it ran its program, and nobody continued it", stopped)
				}
				if stopped != 0 {
					hits++
				}
			}
		})
	}
}

// stopStarting stops a child of ibrun that has not run its program yet, and so has ibrun's
// arguments. It returns 0 when ibrun has ended before.
func stopStarting(ibrun int, t *testing.T) (pid int) {
	arguments := func(pid int) []byte {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return b
	}
	for {
		ours := arguments(ibrun)
		if len(ours) == 0 {
			return 0
		}
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", ibrun))
		for _, path := range lists {
			b, _ := os.ReadFile(path)
			for _, pid := range numbers(t, string(b)) {
				if !bytes.Equal(arguments(pid), ours) || syscall.Kill(pid, syscall.SIGSTOP) != nil {
					continue
				}
				time.Sleep(5 * time.Millisecond)
				if bytes.Equal(arguments(pid), ours) {
					return pid
				}
				_ = syscall.Kill(pid, syscall.SIGCONT)
			}
		}
	}
}
