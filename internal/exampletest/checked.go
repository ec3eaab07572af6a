package exampletest

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/cache"
	"github.com/ibconduit/conduit/internal/fencecheck"
)

// Checked runs a program's ranks in this process with a fence checker, which must find nothing. It
// prints the lines that it names, so that planted faults can be told apart.
func Checked(t *testing.T, n int, cfg conduit.Config, program func(ctx context.Context, job *conduit.Job) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var mu sync.Mutex
	cfg.Fabric = conduit.FabricSHM
	cfg.Cache = &cache.Config{Mapped: true, Check: true, Report: func(r fencecheck.Report) {
		mu.Lock()
		defer mu.Unlock()
		t.Errorf("%v\n%s\n%s", r, lineOf(r.First), lineOf(r.Second))
	}}
	if err := conduit.RunLocalConfig(ctx, n, cfg, func(job *conduit.Job) error { return program(ctx, job) }); err != nil {
		t.Error(err)
	}
}

// lineOf is a line between quotes.
func lineOf(a fencecheck.Access) string {
	if len(a.Stack) == 0 {
		return "unknown"
	}
	p := a.Stack[0]
	text, err := os.ReadFile(p.File)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%q", strings.TrimSpace(strings.Split(string(text), "\n")[p.Line-1]))
}
