//go:build linux

package softroce

import (
	"bytes"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestAGuestThatHangsInItsBootIsStartedOnceMore(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a VM; not with -short")
	}
	var log bytes.Buffer
	launches := 0
	c, err := Start(t.Context(), Config{NoRDMA: true, Timeout: 40 * time.Second, Log: &log, launched: func(h *Host) {
		if launches++; launches == 1 {
			if err := syscall.Kill(h.PID(), syscall.SIGSTOP); err != nil {
				t.Error(err)
			}
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if !c.Host(0).Alive() || launches != 2 || !strings.Contains(log.String(), "once more") {
		t.Errorf("%d launches; %s", launches, log.String())
	}
}
