package bootstrap

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/proctest"
)

func TestStepsHavePortsOfTheirOwn(t *testing.T) {
	seen := map[int]string{}
	for job := range 40 {
		for step := range 5 {
			name := strconv.Itoa(1000+job) + "." + strconv.Itoa(step)
			port, _, err := stepPort(env("SLURM_JOB_ID", strconv.Itoa(1000+job), "SLURM_STEP_ID", strconv.Itoa(step)))
			if err != nil || port < firstStepPort || port >= firstStepPort+stepPorts || seen[port] != "" {
				t.Errorf("step %s: port %d (%v), as %s", name, port, err, seen[port])
			}
			seen[port] = name
		}
	}
	if port, _, err := stepPort(env("SLURM_JOB_ID", "2147483647", "SLURM_STEP_ID", "2147483647")); err != nil || port < firstStepPort || port >= firstStepPort+stepPorts {
		t.Errorf("the last step: port %d, %v", port, err)
	}
}

// fakeMunge puts programs first in PATH that seal nothing: what they write says the user and the
// payload.
func fakeMunge(t *testing.T, uid int) {
	t.Helper()
	dir := t.TempDir()
	for name, script := range map[string]string{
		"munge":   "[ \"$1\" = --no-input ] || { echo " + strconv.Itoa(uid) + "; cat; }",
		"unmunge": `read -r uid; printf 'STATUS: Success (0)\nUID:             root (%s)\nLENGTH: 1\n\n' "$uid"; cat`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// stepOf is the environment of a task of srun --mpi=none on this host.
func stepOf(addr string, rank, size int) environment {
	host, port, _ := net.SplitHostPort(addr)
	return env("SLURM_JOB_ID", "4", "SLURM_STEP_ID", "1", "SLURM_PROCID", strconv.Itoa(rank), "SLURM_STEP_NUM_TASKS", strconv.Itoa(size),
		"SLURM_STEP_NODELIST", host, "SLURM_STEP_RESV_PORTS", port)
}

// joinStep joins as all ranks of a step.
func joinStep(t *testing.T, timeout time.Duration, envs ...environment) ([]Bootstrap, []error) {
	t.Helper()
	ranks, errs := make([]Bootstrap, len(envs)), make([]error, len(envs))
	done := make(chan int)
	for r, e := range envs {
		go func() {
			ranks[r], errs[r] = New(bounded(t), Options{Log: quiet, Lookup: e, Timeout: timeout})
			done <- r
		}()
	}
	for range envs {
		<-done
	}
	t.Cleanup(func() { closeAll(ranks) })
	return ranks, errs
}

func TestAStepMeetsByMungeAlone(t *testing.T) {
	fakeMunge(t, os.Geteuid())
	addr := proctest.HeldAddr(t)
	ranks, errs := joinStep(t, time.Minute, stepOf(addr, 0, 3), stepOf(addr, 1, 3), stepOf(addr, 2, 3))
	noErrors(t, errs)
	ctx := bounded(t)
	noErrors(t, onAll(ranks, func(b Bootstrap) error { return checkExchanges(ctx, b) }))
	noErrors(t, onAll(ranks, Bootstrap.Close))
}

func TestAnotherUserDoesNotJoinByMunge(t *testing.T) {
	fakeMunge(t, os.Geteuid()+1)
	addr := proctest.HeldAddr(t)
	_, errs := joinStep(t, 2*time.Second, stepOf(addr, 0, 2), stepOf(addr, 1, 2))
	e := (*JoinError)(nil)
	if !errors.As(errs[0], &e) || !strings.Contains(e.Text, "missing rank 1") || !strings.Contains(e.Text, "not proven to belong to this job: its munge credential is of user") {
		t.Errorf("rank 0: %v", errs[0])
	}
	if errs[1] == nil {
		t.Error("rank 1 joined")
	}
}

// A credential for another job, and one for the other role, prove nothing; that it is bound to its
// connection shows the same comparison.
func TestAMungeCredentialIsForOneJobAndRole(t *testing.T) {
	fakeMunge(t, os.Geteuid())
	addr := proctest.HeldAddr(t)
	other := stepOf(addr, 1, 2)
	_, errs := joinStep(t, 2*time.Second, stepOf(addr, 0, 2), func(name string) (string, bool) {
		if name == "SLURM_JOB_ID" {
			return "5", true
		}
		return other(name)
	})
	if errs[0] == nil || !strings.Contains(errs[0].Error(), "want this connection of job 4.1") {
		t.Errorf("rank 0: %v", errs[0])
	}
	if errs[1] == nil {
		t.Error("rank 1 joined")
	}
}

func TestAStepWithoutSecretAndMungeSaysSoAtOnce(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for rank := range 2 {
		_, err := New(bounded(t), Options{Log: quiet, Lookup: stepOf("192.0.2.1:1", rank, 2), Timeout: time.Hour})
		if err == nil || !strings.Contains(err.Error(), "export IBCONDUIT_SECRET=$(openssl rand -hex 32)") || !strings.Contains(err.Error(), "munge") {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

func TestAStepsPortThatIsTakenIsNamed(t *testing.T) {
	fakeMunge(t, os.Geteuid())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	addr := l.Addr().String()
	_, err = New(bounded(t), Options{Log: quiet, Lookup: stepOf(addr, 0, 2), Timeout: 2 * time.Second})
	if err == nil || !strings.Contains(err.Error(), "listen at "+addr) || !strings.Contains(err.Error(), "the first of SLURM_STEP_RESV_PORTS") {
		t.Errorf("%v", err)
	}
}

func TestWhatUnmungeWritesIsRead(t *testing.T) {
	const real = "STATUS:          Success (0)\nENCODE_HOST:     localhost (127.0.0.1)\nUID:             some user (1000)\nGID:             users (100)\nUID_RESTRICTION: root (0)\nLENGTH:          5\n\na\n\nb\n"
	if uid, payload, err := parseUnmunge(real); uid != 1000 || payload != "a\n\nb\n" || err != nil {
		t.Errorf("%d %q %v", uid, payload, err)
	}
	for _, bad := range []string{"", "UID: 0\n", "UID: root\n\npayload", "GID: users (100)\n\nUID: root (0)\n"} {
		if uid, _, err := parseUnmunge(bad); err == nil {
			t.Errorf("%q is of user %d", bad, uid)
		}
	}
}
