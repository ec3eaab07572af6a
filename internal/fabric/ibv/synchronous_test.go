//go:build linux && cgo

package ibv

import (
	"bytes"
	"testing"

	"github.com/ibconduit/conduit/internal/fabric"
)

// A synchronous operation that is not answered within its first call gets records late. It must
// then be what any other is: one outcome, and everything given back.
func TestASlowSynchronousOperationGetsRecords(t *testing.T) {
	for name, start := range map[string]func(l *lane, buf []byte) (fabric.Handle, error){
		"inline put":  func(l *lane, buf []byte) (fabric.Handle, error) { return l.Put(1, 64, buf[:8], fabric.Blocking) },
		"bounced put": func(l *lane, buf []byte) (fabric.Handle, error) { return l.Put(1, 64, buf, fabric.Blocking) },
		"small get":   func(l *lane, buf []byte) (fabric.Handle, error) { return l.Get(1, 64, buf[:8], fabric.Blocking) },
		"big get":     func(l *lane, buf []byte) (fabric.Handle, error) { return l.Get(1, 64, buf, fabric.Blocking) },
		"direct get": func(l *lane, _ []byte) (fabric.Handle, error) {
			return l.Get(1, 64, l.set.net.cfg.Segment.Bytes()[512:1024], fabric.Blocking)
		},
		"atomic": func(l *lane, _ []byte) (fabric.Handle, error) {
			_, h, err := l.Atomic(1, 64, fabric.Atomic{Op: fabric.FetchAdd, Operand: 1}, fabric.Blocking)
			return h, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 2, Config{})
			l := r.lane(0)
			r.mute(1, 0)
			buf := bytes.Repeat([]byte{7}, 4096)
			h, err := start(l, buf)
			r.must("start", err)
			if h == fabric.Done || l.set.tx.out != 1 {
				t.Fatalf("handle %#x with %d out, of an operation without an answer", h, l.set.tx.out)
			}
			verify(t, l.set)
			if _, done, err := l.Test(h); done || err != nil {
				t.Fatal("complete without an answer", err)
			}
			r.nets[0].PeerDown(1, errKilled)
			_, err = l.Wait(r.ctx, h)
			r.down("wait", err, 1, errKilled)
			if c := l.Counters(); c.Errors != 1 || c.Completed != 0 || l.set.tx.out != 0 {
				t.Errorf("%d failed, %d completed, %d out", c.Errors, c.Completed, l.set.tx.out)
			}
			if !bytes.Equal(buf, bytes.Repeat([]byte{7}, 4096)) {
				t.Error("a failed operation changed its buffer")
			}
		})
	}
}

// Only an operation with nothing before it is carried out synchronously.
func TestABlockingPutKeepsTheOrder(t *testing.T) {
	r := newRig(t, 2, Config{})
	l := r.lane(0)
	_, err := l.Put(1, 0, word(1), fabric.Implicit)
	r.must("put", err)
	_, err = l.Put(1, 0, word(2), fabric.Blocking)
	r.must("put behind it", err)
	r.must("flush", l.Flush(r.ctx))
	if got := r.word(1, 0); got != 2 {
		t.Errorf("the earlier put came last: %d", got)
	}
}
