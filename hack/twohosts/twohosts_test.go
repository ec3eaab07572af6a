//go:build linux && cgo

package twohosts

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ibconduit/conduit/hack/softroce"
)

func TestMain(m *testing.M) {
	if s := os.Getenv(envSSH); s != "" {
		os.Exit(sshMain(s, os.Args[1:]))
	}
	if p := os.Getenv(envProgram); p != "" {
		os.Exit(rankMain(p))
	}
	os.Exit(m.Run())
}

// job is a running job; its ranks print into outs.
type job struct {
	*testing.T
	ctx   context.Context
	ranks []*softroce.Cmd
	outs  []*output
}

// output collects what a rank prints.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// start starts a job whose rank r is on host hosts[r], in the way of people
// without a launcher: TCP by environment.
func start(t *testing.T, c *softroce.Cluster, program, fabric string, rounds int, hosts ...int) *job {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	return launch(t, c, []string{envProgram + "=" + program, fmt.Sprintf("%s=%d", envRounds, rounds), "IBCONDUIT_FABRIC=" + fabric}, hosts, exe)
}

// port is that of the last job. Several may run at a time.
var port = 7100

// launch starts any program so.
func launch(t *testing.T, c *softroce.Cluster, env []string, hosts []int, exe string, args ...string) *job {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), rankLimit+time.Minute)
	t.Cleanup(cancel)
	j := &job{T: t, ctx: ctx}
	port++
	for r, h := range hosts {
		cmd, out := c.Host(h).Command(append([]string{exe}, args...)...), &output{}
		cmd.Stdout, cmd.Stderr = out, out
		cmd.Env = append(c.Host(h).Environ(), fmt.Sprintf("IBCONDUIT_RANK=%d", r), fmt.Sprintf("IBCONDUIT_SIZE=%d", len(hosts)),
			fmt.Sprintf("IBCONDUIT_ADDR=10.0.1.1:%d", port), "IBCONDUIT_SECRET="+strings.Repeat("5ec4e7", 8))
		cmd.Env = append(cmd.Env, env...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		j.ranks, j.outs = append(j.ranks, cmd), append(j.outs, out)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for r, out := range j.outs {
				t.Logf("rank %d on vm%d printed:\n%s", r, hosts[r], out)
			}
		}
	})
	return j
}

// says waits until a rank has printed a text, and the rest of its line.
func (j *job) says(rank int, text string) {
	j.Helper()
	for {
		_, rest, found := strings.Cut(j.outs[rank].String(), text)
		if found && (strings.HasSuffix(text, "\n") || strings.Contains(rest, "\n")) {
			return
		}
		if j.ctx.Err() != nil {
			j.Fatalf("rank %d did not say %q", rank, text)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// line is the first line of what a rank printed that has a text.
func (j *job) line(rank int, text string) string {
	for l := range strings.Lines(j.outs[rank].String()) {
		if strings.Contains(l, text) {
			return strings.TrimSpace(l)
		}
	}
	return ""
}

// end waits for the ranks that are named, which must succeed.
func (j *job) end(ranks ...int) {
	j.Helper()
	for _, r := range ranks {
		if err := j.ranks[r].Wait(j.ctx); err != nil {
			j.Errorf("rank %d: %v", r, err)
		}
	}
}

// all are done, and no rank was found down.
func (j *job) all() {
	j.Helper()
	for r := range j.ranks {
		j.end(r)
		if want := fmt.Sprintf("rank %d: done\n", r); !strings.Contains(j.outs[r].String(), want) {
			j.Errorf("rank %d did not say %q", r, want)
		}
	}
}

// replug has the cable out in the midst of a program, which notices nothing, and reports whether
// rank 0 had to wait for it.
func replug(t *testing.T, c *softroce.Cluster, program string, rounds int) bool {
	t.Helper()
	j := start(t, c, program, "auto", rounds, 0, 1)
	j.says(0, "traffic")
	j.says(1, "traffic")
	must(t, c.Cut(0, 1))
	cut := time.Now()
	time.Sleep(2 * time.Second) // less than a device tries
	said := j.outs[0].String()
	must(t, c.Restore(0, 1))
	t.Logf("the cable was out for %.1f s", time.Since(cut).Seconds())
	j.all()
	t.Logf("all done after %.1f s: %+v, %+v", time.Since(cut).Seconds(), c.Link(0, 1), c.Link(1, 0))
	return said == "rank 0: traffic\n"
}

// ibbench builds it.
func ibbench(t *testing.T) string {
	t.Helper()
	exe := filepath.Join(t.TempDir(), "ibbench")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", exe, "github.com/ibconduit/conduit/cmd/ibbench").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return exe
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// endless rounds: until a rank is down.
const endless = 1 << 30

// A cluster is booted once for all that happens between two hosts: what breaks a host comes last.
func TestTwoHosts(t *testing.T) {
	if testing.Short() {
		t.Skip("boots two VMs; not with -short")
	}
	c, err := softroce.Start(t.Context(), softroce.Config{Hosts: 2})
	must(t, err)
	t.Cleanup(func() { c.Close() })

	t.Run("puts, gets and atomics between two kernels are exact", func(t *testing.T) {
		j := start(t, c, "exchange", "auto", 100, 0, 1)
		j.all()
		if !strings.Contains(j.outs[0].String(), "reaches rank 1 over ibv") {
			t.Error("rank 0 does not reach rank 1 over verbs")
		}
	})
	t.Run("atomics of ranks on both hosts add up, though memory is shared within one", func(t *testing.T) {
		j := start(t, c, "exchange", "auto", 50, 0, 0, 1, 1)
		j.all()
		for r, network := range []string{"shm", "shm", "ibv", "ibv"} {
			if want := fmt.Sprintf("reaches rank %d over %s", r, network); !strings.Contains(j.outs[1].String(), want) {
				t.Errorf("rank 1 did not say that it %s", want)
			}
		}
	})
	t.Run("messages go by shared memory within a host and over the device between hosts", func(t *testing.T) {
		j := start(t, c, "messages", "auto", 40, 0, 0, 1, 1)
		j.all()
		for r, out := range j.outs {
			for _, network := range []string{"shm", "ibv"} { // two ranks by either, ten rounds each: a call and a post, and at least one question
				var n, rnr int
				for line := range strings.Lines(out.String()) {
					_, _ = fmt.Sscanf(line, fmt.Sprintf("rank %d: %%d requests over %s, %%d messages met no buffer", r, network), &n, &rnr)
				}
				if n < 2*(2*10+1) || rnr != 0 {
					t.Errorf("rank %d sent %d requests over %s, want at least %d; %d messages met no buffer", r, n, network, 2*(2*10+1), rnr)
				}
			}
		}
	})
	t.Run("ibrun starts ranks on both hosts", func(t *testing.T) { byIbrun(t, c) })
	t.Run("ibbench measures between two kernels", func(t *testing.T) {
		exe := ibbench(t)
		for _, op := range []string{"put", "get", "amo"} {
			j := launch(t, c, nil, []int{0, 1}, exe, "lat", op, "--fabric", "ibv", "--size", "8", "--iters", "50", "--format", "json", "-q")
			j.end(0, 1)
			var series []struct {
				Op     string
				Env    struct{ Fabric, From, To string }
				Result struct {
					Count, Errors int
					P             map[string]float64
				}
			}
			out := j.outs[0].String()
			if err := json.Unmarshal([]byte(out), &series); err != nil || len(series) != 1 {
				t.Fatalf("%v; rank 0 printed\n%s", err, out)
			}
			if s := series[0]; s.Op != op || s.Env.Fabric != "ibv" || s.Env.From != "vm0 rank 0" || s.Env.To != "vm1 rank 1" ||
				s.Result.Count != 50 || s.Result.Errors != 0 || s.Result.P["50"] <= 0 {
				t.Errorf("%+v", s)
			}
		}
	})
	t.Run("lost packets change no byte, no count and no message", func(t *testing.T) {
		must(t, c.Drop(0, 1, 0.01))
		defer c.Restore(0, 1)
		before := c.Link(0, 1).Lost + c.Link(1, 0).Lost
		var jobs []*job // which wait for retransmissions, most of the time
		for _, program := range []string{"traffic", "messages", "mixed"} {
			jobs = append(jobs, start(t, c, program, "auto", 40, 0, 1))
		}
		for _, j := range jobs {
			j.all()
		}
		if c.Link(0, 1).Lost+c.Link(1, 0).Lost == before {
			t.Error("no packet was lost: nothing was proved")
		}
	})
	t.Run("a cable that is plugged in again goes unnoticed", func(t *testing.T) {
		if !replug(t, c, "traffic", 60) && !replug(t, c, "traffic", 1000) { // a few rounds may be over before the cable is out
			t.Error("rank 0 did not wait")
		}
	})
	t.Run("messages", func(t *testing.T) { messagesBetween(t, c) })

	// A device takes long to find out that it is cut off: the jobs share the wait.
	t.Run("a cut cable ends the operations and calls to the other host", func(t *testing.T) {
		puts := start(t, c, "traffic", "auto", endless, 0, 1)
		calls := start(t, c, "messages", "auto", endless, 0, 1)
		mixed := start(t, c, "mixed", "ibv", endless, 0, 0, 1)
		for _, j := range []*job{puts, calls, mixed} {
			j.started()
		}
		must(t, c.Cut(0, 1))
		defer c.Restore(0, 1)
		for _, j := range []*job{puts, calls} {
			j.says(0, "rank 0: found rank 1 down")
			j.says(1, "rank 1: found rank 0 down")
			j.end(0, 1)
		}
		mixed.find("[2]", "[0 1]", 0, 1) // and they go on among themselves
		mixed.says(2, "rank 2: survives with [2]\n")
		mixed.end(2)
	})
	t.Run("a host without power is found down by all ranks of the other", func(t *testing.T) {
		puts := start(t, c, "traffic", "auto", endless, 0, 0, 1)
		mixed := start(t, c, "mixed", "auto", endless, 0, 0, 1)
		puts.started()
		mixed.started()
		must(t, c.Kill(1))
		for _, r := range []int{0, 1} {
			puts.says(r, fmt.Sprintf("rank %d: found rank 2 down", r))
		}
		puts.end(0, 1)
		mixed.find("[2]", "[0 1]", 0, 1)
	})
}
