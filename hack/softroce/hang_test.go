//go:build linux

package softroce

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Reports match what Start says of its own accord on a machine that others use too.
var Reports = regexp.MustCompile(`(?m)^softroce: waiting for another VM .*\n|` +
	`^softroce: VM \d+ did not come up: (?s:.*?)\nsoftroce: VM \d+ runs and has said nothing; it is started once more\n`)

// stop has a guest hang.
func stop(t *testing.T, h *Host) {
	if err := syscall.Kill(h.PID(), syscall.SIGSTOP); err != nil {
		t.Error(err)
	}
}

func TestAGuestThatHangsInItsBootIsStartedOnceMore(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a VM; not with -short")
	}
	const evidence = "the last words of the first qemu"
	var log lockedBuffer
	launches := 0
	c, err := Start(t.Context(), Config{NoRDMA: true, Timeout: time.Second, Log: &log, launched: func(h *Host) {
		if launches++; launches > 1 {
			h.c.cfg.Timeout = 4 * time.Minute
			return
		}
		stop(t, h)
		if err := os.WriteFile(filepath.Join(h.c.logDir, "qemu-0.log"), []byte(evidence), 0o644); err != nil {
			t.Error(err)
		}
	}})
	if err != nil {
		t.Fatal(err, log.String())
	}
	defer c.Close()
	if !c.Host(0).Alive() || launches != 2 {
		t.Errorf("%d launches; %s", launches, log.String())
	}
	if r := strings.Join(Reports.FindAllString(log.String(), -1), ""); !strings.Contains(r, evidence) || !strings.Contains(r, c.LogDir()) {
		t.Errorf("the first guest is not reported: %s", log.String())
	}
	if b, err := os.ReadFile(filepath.Join(c.LogDir(), "qemu-0.log")); err != nil || string(b) != evidence {
		t.Errorf("the first guest's log has %q: %v", b, err)
	}
}

func TestAnotherBootFailureIsNotRetried(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a VM; not with -short")
	}
	for _, c := range []struct {
		name     string
		cfg      Config
		launched func(*testing.T, *Host)
		want     string
	}{
		{"its port breaks", Config{Timeout: 4 * time.Minute}, func(t *testing.T, h *Host) { h.machine.Port.Close() }, "no greeting"},
		{"it hangs after a word on its console", Config{Timeout: time.Second, Append: "loglevel=7"}, func(t *testing.T, h *Host) {
			for end := time.Now().Add(3 * time.Minute); h.machine.Tail("console", 1) == "" && time.Now().Before(end); {
				time.Sleep(10 * time.Millisecond)
			}
			stop(t, h)
		}, "--- console"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log lockedBuffer
			launches := 0
			c.cfg.NoRDMA, c.cfg.Log = true, &log
			c.cfg.launched = func(h *Host) {
				if launches++; launches == 1 {
					c.launched(t, h)
				}
			}
			started, err := Start(t.Context(), c.cfg)
			if err == nil {
				started.Close()
			}
			if launches != 1 || err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%d launches: %v; %s", launches, err, log.String())
			}
		})
	}
}
