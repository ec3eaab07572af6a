package metrics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ibconduit/conduit"
)

// variables are an environment.
func variables(kv ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(kv); i += 2 {
			if kv[i] == name {
				return kv[i+1]
			}
		}
		return ""
	}
}

func fetch(url string) (status int, body string, err error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	resp, err := client.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

func TestServeEnvAnnouncesEachRank(t *testing.T) {
	dir := t.TempDir()
	local(t, 2, func(j *conduit.Job) error {
		s, err := serveEnv(variables(addrVar, "0", dirVar, dir), j, nil)
		if err != nil {
			return err
		}
		defer s.Close()
		if err := j.Barrier(t.Context()); err != nil {
			return err
		}
		targets, err := discovered(dir)
		if err != nil || len(targets) != 2 {
			return fmt.Errorf("targets %q, want one of each rank (%v)", targets, err)
		}
		for _, at := range targets {
			status, body, err := fetch("http://" + at + "/metrics")
			if err != nil || status != http.StatusOK || !strings.Contains(body, "\nibconduit_build_info{goversion=") {
				return fmt.Errorf("%s: status %d, %v:\n%s", at, status, err, body)
			}
			if own := strings.Contains(body, fmt.Sprintf(`rank="%d"`, j.Rank())); own != (at == s.Addr().String()) {
				return fmt.Errorf("%s is rank %d's: %t", at, j.Rank(), own)
			}
			if status, _, err := fetch("http://" + at + "/debug/pprof/goroutine"); err != nil || status != http.StatusNotFound {
				return fmt.Errorf("profiles that nobody asked for: status %d, %v", status, err)
			}
		}
		if err := j.Barrier(t.Context()); err != nil {
			return err
		}
		return errors.Join(s.Close(), s.Close())
	})
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("files are left: %v (%v)", left, err)
	}
}

// discovered reads the files as Prometheus does.
func discovered(dir string) (all []string, err error) {
	files, err := filepath.Glob(dir + "/*.json")
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		var groups []struct {
			Targets []string
			Labels  map[string]string
		}
		if err := json.Unmarshal(b, &groups); err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		for _, g := range groups {
			all = append(all, g.Targets...)
		}
	}
	return all, nil
}

func TestServeEnvAddsTheLocalRank(t *testing.T) {
	held, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	port := held.Addr().(*net.TCPAddr).Port
	base := strconv.Itoa(port - 3)
	for _, at := range []string{base, ":" + base, "127.0.0.1:" + base} {
		_, err := listenEnv(at, 3, false)
		if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), strconv.Itoa(port)) || !strings.Contains(err.Error(), dirVar) {
			t.Errorf("%s, local rank 3: %v, want that port %d is taken", at, err, port)
		}
		l, err := listenEnv(at, 3, true)
		if err != nil {
			t.Errorf("%s: no other port: %v", at, err)
			continue
		}
		if a := l.Addr().(*net.TCPAddr); !a.IP.IsLoopback() || a.Port == port {
			t.Errorf("%s: listens at %v", at, a)
		}
		l.Close()
	}
}

func TestServeEnvSaysWhatIsWrong(t *testing.T) {
	local(t, 1, func(j *conduit.Job) error {
		if s, err := serveEnv(variables(), j, nil); s != nil || err != nil || s.Addr() != nil || s.Close() != nil {
			return fmt.Errorf("without a variable: %v, %v", s, err)
		}
		for want, env := range map[string][]string{
			"want a port":         {addrVar, "yes"},
			"from 0 to 65535":     {addrVar, "127.0.0.1:65536"},
			"no loopback address": {addrVar, "0.0.0.0:0", pprofVar, "1"},
			"want 0 or 1":         {addrVar, "0", pprofVar, "yes"},
			dirVar:                {addrVar, "0", dirVar, "/nowhere"},
		} {
			s, err := serveEnv(variables(env...), j, nil)
			if err == nil || !strings.Contains(err.Error(), want) {
				s.Close()
				return fmt.Errorf("%q: %v, want %q", env, err, want)
			}
		}
		if _, err := listenEnv("65535", 1, false); err == nil || !strings.Contains(err.Error(), "65536") {
			return fmt.Errorf("beyond the last port: %v", err)
		}
		return nil
	})
}

func TestProfilesKnowRankAndPhase(t *testing.T) {
	local(t, 2, func(j *conduit.Job) error {
		s, err := serveEnv(variables(addrVar, "0", pprofVar, "1"), j, nil)
		if err != nil {
			return err
		}
		defer s.Close()
		url := "http://" + s.Addr().String() + "/debug/pprof/"
		Phase(t.Context(), j, "halo", func(context.Context) {
			var body string
			if _, body, err = fetch(url + "goroutine?debug=1"); err != nil {
				return
			}
			if want := fmt.Sprintf(`"phase":"halo", "rank":"%d"`, j.Rank()); !strings.Contains(body, want) {
				err = fmt.Errorf("no %s in:\n%s", want, body)
			}
		})
		if err != nil {
			return err
		}
		if err := j.Barrier(t.Context()); err != nil || j.Rank() != 0 {
			return errors.Join(err, j.Barrier(t.Context()))
		}
		for path, want := range map[string]int{"heap": 200, "profile?seconds=1": 200, "profile?seconds=x": 400, "none": 404} {
			status, body, err := fetch(url + path)
			if err != nil || status != want || status == 200 && !strings.HasPrefix(body, "\x1f\x8b") {
				return errors.Join(fmt.Errorf("%s: status %d, want %d, %d bytes, %v", path, status, want, len(body), err), j.Barrier(t.Context()))
			}
		}
		return j.Barrier(t.Context())
	})
}

func TestLatenciesAreHistograms(t *testing.T) {
	cfg := shm
	cfg.Latency = true
	err := conduit.RunLocalConfig(t.Context(), 2, cfg, func(j *conduit.Job) error {
		w, err := j.NewWorker()
		if err != nil {
			return err
		}
		defer w.Close()
		for range 5 {
			if err := conduit.Put(w, conduit.At[int64](1-j.Rank(), 8), 1); err != nil {
				return err
			}
		}
		h, err := Handler(NewCollector(j))
		if err != nil {
			return err
		}
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
		text := rec.Body.String()
		for _, want := range []string{
			"# TYPE ibconduit_operation_latency_seconds histogram\n",
			fmt.Sprintf("ibconduit_operation_latency_seconds_bucket{job_id=%q,network=\"shm\",op=\"put\",rank=\"%d\",le=\"+Inf\"} 5\n", j.ID(), j.Rank()),
			fmt.Sprintf("ibconduit_operation_latency_seconds_count{job_id=%q,network=\"shm\",op=\"put\",rank=\"%d\"} 5\n", j.ID(), j.Rank()),
			`le="6.4e-08"`, `le="8.589934592"`,
		} {
			if !strings.Contains(text, want) {
				return fmt.Errorf("no %q in:\n%s", want, text)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A rank that was killed leaves its file, and no lock: the next rank removes it, and leaves those
// of ranks that live.
func TestFilesOfDeadRanksAreRemoved(t *testing.T) {
	dir := t.TempDir()
	dead, theirs := filepath.Join(dir, "ibconduit-h-1.json"), filepath.Join(dir, "theirs.json")
	for _, f := range []string{dead, theirs} {
		if err := os.WriteFile(f, []byte("[]"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	addr := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 2}
	first, err := announce(dir, addr)
	if err != nil {
		t.Fatal(err)
	}
	second, err := announce(dir, &net.TCPAddr{IP: addr.IP, Port: 3})
	if err != nil {
		t.Fatal(err)
	}
	for f, want := range map[string]bool{dead: false, theirs: true, first.path: true, second.path: true} {
		if _, err := os.Stat(f); (err == nil) != want {
			t.Errorf("%s is there: %t, want %t", f, err == nil, want)
		}
	}
	// Another rank has the first one's port, and the name with it.
	third, err := announce(dir, addr)
	if err := errors.Join(err, first.remove()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(third.path); err != nil {
		t.Error(err)
	}
	if err := errors.Join(second.remove(), third.remove()); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(dir + "/*"); err != nil || len(left) != 1 {
		t.Errorf("left: %q (%v)", left, err)
	}
}
