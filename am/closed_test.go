package am_test

import (
	"errors"
	"testing"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/amtest"
	"github.com/ibconduit/conduit/internal/fabric"
)

// Whoever learns of a death by a call that it ended must find that the rest of the program knows.
func TestOnClosedIsToldOfADeathBeforeACallEndsByIt(t *testing.T) {
	table := am.NewTable()
	h := table.Handle("never", func(c *am.Call) { c.Defer(0) })
	var call *am.Pending
	told, early := 0, false
	l := endpoints(t, amtest.NewMemory(2, 64), 2, am.Config{Table: table, OnClosed: func(int, error) {
		told++
		_, early, _ = call.Test()
	}})
	var err error
	if call, err = h.Start(bounded(t), l[0], 1, am.Payload{}); err != nil {
		t.Fatal(err)
	}
	l[0].PeerDown(1, errors.New("somebody says so"))
	if _, err := call.Wait(bounded(t)); !errors.Is(err, fabric.ErrPeerDown) {
		t.Fatal(err)
	}
	if told != 1 || early {
		t.Errorf("OnClosed was told %d times; the call had ended before: %v", told, early)
	}
}
