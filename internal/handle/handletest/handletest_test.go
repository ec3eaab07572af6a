package handletest

import (
	"bytes"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/internal/handle"
)

type thing struct{ h *handle.Handle }

func TestMain(m *testing.M) { VerifyTestMain(m) }

func TestVerifyPrintsTheStackOfAnOpenHandle(t *testing.T) {
	x := &thing{}
	x.h = handle.New(x, "thing", "left open")
	var out bytes.Buffer
	if code := verify(&out, 0); code != 1 {
		t.Errorf("exit code %d with an open handle, want 1", code)
	}
	for _, want := range []string{"1 handles", "thing left open", t.Name(), "handletest_test.go"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("report lacks %q:\n%s", want, out.String())
		}
	}
	x.h.Close()
	out.Reset()
	if code := verify(&out, 0); code != 0 || out.Len() != 0 {
		t.Errorf("exit code %d after Close, report %q", code, out.String())
	}
}

func TestVerifyFailsForAGoroutineLeftRunning(t *testing.T) {
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() { <-stop; close(done) }()
	var out bytes.Buffer
	if code := verify(&out, 0); code != 1 || !strings.Contains(out.String(), t.Name()) {
		t.Errorf("exit code %d, report %q", code, out.String())
	}
	close(stop)
	<-done
}

func TestVerifyKeepsTheCodeOfFailedTests(t *testing.T) {
	if code := verify(&bytes.Buffer{}, 3); code != 3 {
		t.Errorf("exit code %d, want 3", code)
	}
}
