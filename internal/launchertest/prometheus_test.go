package launchertest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/proctest"
	"github.com/ibconduit/conduit/metrics"
)

// stopVar names the file at whose appearance a watched rank ends.
const stopVar = "IBCONDUIT_TEST_STOP"

// watched is a rank that communicates and shows it, until it is told to end.
func watched() int {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	if err := watch(ctx); err != nil {
		fmt.Println(err)
		return exitError
	}
	return 0
}

func watch(ctx context.Context) (err error) {
	table := am.NewTable()
	echo := table.Handle("echo", func(c *am.Call) { _ = c.Reply() })
	job, err := conduit.Join(ctx, conduit.Config{
		Fabric: conduit.FabricSHM, SegmentSize: 8 << 20, HeapSize: 1 << 20, Handlers: table, Latency: true,
		Memory: conduit.MemoryConfig{Budget: flow.BudgetConfig{Limit: 1 << 20}},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, job.Close()) }()
	s, err := metrics.ServeEnv(job)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	w, err := job.NewWorker()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	peer := 1 - job.Rank()
	p := conduit.At[int64](peer, job.Info().Shared.End())
	for {
		if _, err := os.Stat(os.Getenv(stopVar)); err == nil {
			return job.Barrier(ctx)
		}
		err := conduit.Put(w, p, 1)
		_, getErr := conduit.Get(w, p)
		_, addErr := conduit.FetchAdd(w, p, 1)
		_, callErr := echo.Call(ctx, w, peer)
		if err := errors.Join(err, getErr, addErr, callErr, w.Flush(ctx), ctx.Err()); err != nil {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// prometheusProgram finds prometheus or promtool. Without it the test is skipped, or fails where
// make test has unpacked it.
func prometheusProgram(t *testing.T, name string) string {
	t.Helper()
	unpacked, err := filepath.Abs("../../build/prometheus/usr/bin/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(unpacked); err == nil {
		return unpacked
	}
	path, err := exec.LookPath(name)
	if err != nil {
		if os.Getenv("IBCONDUIT_REQUIRE_PROMETHEUS") == "1" {
			t.Fatalf("IBCONDUIT_REQUIRE_PROMETHEUS=1, but %v (hack/setup.sh prometheus unpacks it)", err)
		}
		t.Skipf("%v (hack/setup.sh prometheus unpacks it); IBCONDUIT_REQUIRE_PROMETHEUS=1 makes this an error", err)
	}
	return path
}

const deployed = "../../deploy/metrics/"

func TestPromtoolAcceptsTheAlerts(t *testing.T) {
	tool := prometheusProgram(t, "promtool")
	for _, args := range [][]string{
		{"check", "config", "prometheus.yml"}, {"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"},
	} {
		cmd := exec.CommandContext(t.Context(), tool, args...)
		cmd.Dir = deployed
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "SUCCESS") {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}

// queries are those of the dashboard, with what Grafana would put in the place of its variables.
func queries(t *testing.T) (all []string) {
	t.Helper()
	b, err := os.ReadFile(deployed + "dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(b, &dashboard); err != nil {
		t.Fatal(err)
	}
	fill := strings.NewReplacer("$__rate_interval", "1m", "$job_id", ".*")
	for _, p := range dashboard.Panels {
		for _, q := range p.Targets {
			all = append(all, fill.Replace(q.Expr))
		}
	}
	if len(all) < 25 {
		t.Fatalf("the dashboard has %d queries", len(all))
	}
	return all
}

// devices is in the queries of what a job over shared memory has not.
const devices = "ibconduit_port_"

func TestPrometheusAnswersTheDashboard(t *testing.T) {
	program := prometheusProgram(t, "prometheus")
	dir := t.TempDir()
	targets, stop := filepath.Join(dir, "targets"), filepath.Join(dir, "stop")
	alerts, err := filepath.Abs(deployed + "alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(deployed + "prometheus.yml")
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.NewReplacer("/run/ibconduit", targets, "scrape_interval: 5s", "scrape_interval: 1s", "alerts.yml", alerts).Replace(string(config))
	if err := errors.Join(os.Mkdir(targets, 0o755), os.WriteFile(dir+"/prometheus.yml", []byte(changed), 0o600)); err != nil {
		t.Fatal(err)
	}
	addr := proctest.HeldAddr(t)
	var ranks []*process
	for rank := range 2 {
		ranks = append(ranks, start(t, []string{
			roleVar + "=watched", stopVar + "=" + stop, "IBCONDUIT_METRICS=0", "IBCONDUIT_METRICS_DIR=" + targets,
			fmt.Sprintf("IBCONDUIT_RANK=%d", rank), "IBCONDUIT_SIZE=2", "IBCONDUIT_ADDR=" + addr,
		}, self(t)))
	}
	web := proctest.HeldAddr(t)
	server := start(t, nil, program, "--config.file="+dir+"/prometheus.yml", "--storage.tsdb.path="+dir+"/data", "--web.listen-address="+web)

	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	for _, q := range queries(t) {
		for {
			n, err := query(ctx, web, q)
			if errors.As(err, new(*refused)) {
				t.Errorf("%s: %v", q, err)
				break
			}
			if err == nil && (n > 0 || strings.Contains(q, devices)) {
				break
			}
			if ctx.Err() != nil {
				t.Fatalf("%s: %d series, %v\n%v\n%v", q, n, err, ranks, server)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	for q, want := range map[string]int{"up == 1": 2, `ALERTS{alertstate="firing"}`: 0, `{job_id!="", exported_job_id!=""}`: 0} {
		n, err := query(ctx, web, q)
		for ; n != want && ctx.Err() == nil; n, err = query(ctx, web, q) {
			time.Sleep(100 * time.Millisecond)
		}
		if n != want {
			t.Errorf("%s: %d series, want %d (%v)", q, n, want, err)
		}
	}
	if err := os.WriteFile(stop, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, r := range ranks {
		if err := r.wait(); err != nil {
			t.Errorf("%v: %v", err, r)
		}
	}
	if left, err := os.ReadDir(targets); err != nil || len(left) > 0 {
		t.Errorf("targets are left: %v (%v)", left, err)
	}
}

// process runs beside a test, and not longer.
type process struct {
	cmd *exec.Cmd
	out bytes.Buffer // valid once it has ended
	end chan error   // closed once it has
	err error
}

func start(t *testing.T, env []string, command ...string) *process {
	t.Helper()
	p := &process{cmd: exec.CommandContext(t.Context(), command[0], command[1:]...), end: make(chan error)}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.end)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGKILL) // or it has ended
		<-p.end
	})
	return p
}

func (p *process) wait() error {
	<-p.end
	return p.err
}

// String ends it, and says what it said.
func (p *process) String() string {
	_ = p.cmd.Process.Signal(syscall.SIGKILL)
	_ = p.wait()
	return p.cmd.Path + ": " + p.out.String()
}

// refused is what Prometheus says of a query that is none.
type refused struct{ text string }

func (r *refused) Error() string { return r.text }

// query is how many series Prometheus answers with, that have numbers.
func query(ctx context.Context, addr, expr string) (series int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/api/v1/query?query="+url.QueryEscape(expr), nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	if resp.StatusCode == http.StatusBadRequest {
		return 0, &refused{string(text)}
	}
	var answer struct {
		Data struct {
			Result []struct{ Value [2]any }
		}
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return 0, fmt.Errorf("status %s: %w", resp.Status, err)
	}
	for _, r := range answer.Data.Result {
		if r.Value[1] != "NaN" {
			series++
		}
	}
	return series, nil
}
