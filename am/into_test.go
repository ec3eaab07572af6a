package am_test

import (
	"bytes"
	"testing"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/amtest"
)

// echoes are two ranks, of which each answers a Medium with the same bytes.
func echoes(t testing.TB, cfg am.Config) (*am.Handler, []*am.Endpoint) {
	cfg.Table = am.NewTable()
	h := cfg.Table.Handle("echo", func(c *am.Call) { _ = c.ReplyWith(am.Medium(c.Payload()), c.Args()...) })
	return h, endpoints(t, amtest.NewMemory(2, 64), 2, cfg)
}

func sent(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*i + n)
	}
	return b
}

func TestARepliesMemoryIsTheCallers(t *testing.T) {
	h, l := echoes(t, am.Config{})
	ctx := bounded(t)
	var own [300]byte
	for to := range 2 {
		for _, n := range []int{0, 1, 128, 129, 300, 301} {
			p := am.Medium(sent(n)).Into(own[:])
			started, err := h.Start(ctx, l[0], to, p, 7)
			if err != nil {
				t.Fatal(err)
			}
			later, err := started.Wait(ctx)
			if err != nil || !bytes.Equal(later.Data, sent(n)) {
				t.Fatalf("%d bytes of rank %d: %d came back, %v", n, to, len(later.Data), err)
			}
			clear(own[:])
			r, err := h.CallWith(ctx, l[0], to, p, 7)
			if err != nil || r.Arg(0) != 7 || !bytes.Equal(r.Data, sent(n)) || r.Data == nil {
				t.Fatalf("%d bytes of rank %d: %d came back, %v", n, to, len(r.Data), err)
			}
			if in := cap(r.Data) > 0 && &r.Data[:1][0] == &own[0]; n > 0 && in != (n <= len(own)) {
				t.Errorf("%d bytes of rank %d: in the caller's memory: %v", n, to, in)
			}
			if r.Data = append(r.Data, 255); n < len(own) && own[n] == 255 {
				t.Errorf("%d bytes of rank %d: the reply reaches beyond its end", n, to)
			}
			again, err := h.CallWith(ctx, l[0], to, am.Medium(sent(9)))
			if err != nil || &again.Data[0] == &own[0] {
				t.Errorf("a later call's reply is in the memory of one before it: %v", err)
			}
		}
	}
}
