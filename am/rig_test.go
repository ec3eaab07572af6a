package am_test

import (
	"context"
	"testing"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/amtest"
	"github.com/ibconduit/conduit/internal/handle/handletest"
)

func TestMain(m *testing.M) { handletest.VerifyTestMain(m) }

// endpoints opens one endpoint per rank of a network in memory, and closes them.
func endpoints(t testing.TB, m *amtest.Memory, n int, cfg am.Config) []*am.Endpoint {
	t.Helper()
	return endpointsOf(t, m, n, n, cfg)
}

// endpointsOf opens those of the first k of n ranks.
func endpointsOf(t testing.TB, m *amtest.Memory, k, n int, cfg am.Config) []*am.Endpoint {
	t.Helper()
	all := make([]*am.Endpoint, k)
	for i := range all {
		c := cfg
		c.Rank, c.Size, c.Segment = i, n, m.Rank(i).Segment
		l, err := am.Open(m.Rank(i), 0, c)
		if err != nil {
			t.Fatal(err)
		}
		all[i] = l
		t.Cleanup(func() { _ = l.Close() })
	}
	return all
}

// bounded is a context for a test.
func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for until := time.Now().Add(time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("in vain: %s", what)
		}
	}
}
