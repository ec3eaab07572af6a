package main

import (
	"strings"
	"testing"
)

func TestPerftestRefusesALauncher(t *testing.T) {
	_, errs, code := underLauncher(t, 2, "perftest", "lat", "-q")
	if code != exitUsage || !strings.Contains(errs, "run it without a launcher") {
		t.Errorf("exit code %d: %s", code, errs)
	}
}
