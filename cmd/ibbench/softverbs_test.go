package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/hack/softverbs"
)

// inUserSpace runs the program with the verbs device in user space, for JSON.
func inUserSpace(t *testing.T, env []string, args ...string) []report.Series {
	t.Helper()
	out, errs, code := finish(t, userSpace(t, env, append(args, "--format", "json", "-q")...))
	if code != 0 {
		t.Fatalf("%v: exit code %d, standard error %q", args, code, errs)
	}
	var all []report.Series
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("%v: %v in %q", args, err, out)
	}
	return all
}

// userSpace is the program with the verbs device in user space.
func userSpace(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	if !withCgo {
		t.Skip("this build has no verbs: CGO_ENABLED=0")
	}
	if err := softverbs.Usable(t.Context()); err != nil {
		if os.Getenv(softverbs.EnvRequire) == "1" {
			t.Fatalf("%s=1, but %v", softverbs.EnvRequire, err)
		}
		t.Skip(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd, err := softverbs.Command(t.Context(), exe, args...)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(append(os.Environ(), asProgram+"=1"), env...)
	return cmd
}

// Both ranks are there, and what each knows of the other is the only reason that there is.
func TestARankThatIsNotReachedIsExplained(t *testing.T) {
	for _, op := range []string{"put", "am"} {
		for faults, want := range map[string]string{"post=333,node=0": "cannot allocate memory", "cut=333,node=1": "transport retries exceeded", "kill=333,node=1": "signal: killed"} {
			t.Run(op+"/"+faults, func(t *testing.T) {
				t.Parallel() // the other rank waits for most of the time
				_, errs, code := finish(t, userSpace(t, []string{"SOFTVERBS_FAULTS=" + faults}, "lat", op, "--size", "8", "--iters", "3000", "--warmup", "0", "--fabric", "ibv", "-q"))
				if code != exitSetup || !strings.Contains(errs, want) || strings.Contains(errs, "context canceled") {
					t.Errorf("exit code %d: %s", code, errs)
				}
			})
		}
	}
}

// A rank of flow likewise. The receiver waits for what does not come until the launcher ends it.
func TestASenderThatReachesNobodyIsExplained(t *testing.T) {
	cmd := userSpace(t, []string{"SOFTVERBS_FAULTS=cut=30,node=0"}, "flow", "incast", "-n", "2", "--memory", "1", "--rounds", "1", "--fabric", "ibv", "-q")
	if _, errs, code := finish(t, cmd); code != exitSetup || !strings.Contains(errs, "transport retries exceeded") {
		t.Errorf("exit code %d: %s", code, errs)
	}
}

func TestPerftestAndUCXBesideUs(t *testing.T) {
	for _, tool := range []string{"ib_write_lat", "ucx_perftest"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%v: make setup installs it", err)
		}
	}
	all := inUserSpace(t, nil, "perftest", "lat", "--ops", "put,am", "--size", "8", "--iters", "50", "--ucx", "--rounds", "1", "--goals", "put:8=1000")
	if len(all) != 2 {
		t.Fatalf("%d series", len(all))
	}
	for _, s := range all {
		p, u := s.Peer(), s.Beside()
		if s.Env.Device == nil || !s.Env.Device.Software || p == nil || u == nil || len(p.Rounds) != 1 || len(u.Rounds) != 1 {
			t.Fatalf("%s: device %+v, perftest %+v, UCX %+v", s.Op, s.Env.Device, p, u)
		}
		if s.Result.Min <= 0 || p.Result.Min <= 0 || u.Result.Min <= 0 || u.Ratio == nil || u.Ratio.Median <= 0 || s.Value("ratio.best") <= 0 || u.Version == "" {
			t.Errorf("%s: ours %+v, perftest %+v, UCX %+v, ratio %+v", s.Op, s.Result, p.Result, u.Result, s.Metrics)
		}
	}
	if am := all[1]; am.Beside().Times != 2 || am.Peer().Times != 2 || am.Has("goal.verdict") {
		t.Errorf("a round trip beside halves: %+v, goal %+v", am.Beside(), am.Metrics)
	}
	if g := all[0].Text("goal.verdict"); g != report.Open {
		t.Errorf("one round, goal %q", g)
	}
}

// perftest's tool fails in the third round, and in its two repetitions.
func TestRoundsBeforeAFailureAreReported(t *testing.T) {
	real, err := exec.LookPath("ib_write_lat")
	if err != nil {
		t.Skipf("%v: make setup installs it", err)
	}
	dir := t.TempDir()
	tool, results := filepath.Join(dir, "ib_write_lat"), filepath.Join(dir, "r.json")
	body := fmt.Sprintf("#!/bin/sh\nread n <$0.n; echo $((n+1)) >$0.n; [ $n -lt 4 ] || exit 7; exec %s \"$@\"\n", real)
	if err := errors.Join(os.WriteFile(tool, []byte(body), 0o755), os.WriteFile(tool+".n", []byte("0\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	env := []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
	_, errs, code := finish(t, userSpace(t, env, "perftest", "lat", "--ops", "put", "--sizes", "8", "--iters", "50", "-q", "-o", results))
	if code != exitSetup || !strings.Contains(errs, "round 5: ") || !strings.Contains(errs, "exit status 7") {
		t.Errorf("exit code %d: %s", code, errs)
	}
	if all, err := report.Read(results); err != nil || len(all) != 1 || len(all[0].Peer().Rounds) != 2 {
		t.Errorf("%d series, %v", len(all), err)
	}
}
