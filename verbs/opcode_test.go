//go:build linux && cgo

package verbs

import (
	"bytes"
	"testing"
)

func TestWriteAndReadMoveBytes(t *testing.T) {
	for _, n := range []int{1, 8, 4096, 4097, 300_000} {
		r := newRig(t)
		a, _ := r.pair(endConfig{})
		pattern(r.mem[:n], n)
		a.send.SetLocal(0, r.addr(0), uint32(n), r.mr.LKey())
		r.postSend(a, func(w *SendWR) { w.Opcode = OpWrite; w.WRID = 1; w.SetRemote(r.addr(rigBytes/2), r.mr.RKey()) })
		if wc := r.ok(a); wc.WRID != 1 || wc.Opcode != WCWrite || wc.QPNum != a.qp.Num() {
			t.Errorf("completion %s", describe(wc))
		}
		if !bytes.Equal(r.mem[:n], r.mem[rigBytes/2:rigBytes/2+n]) {
			t.Errorf("WRITE of %d bytes: target differs", n)
		}
		clear(r.mem[:n])
		r.postSend(a, func(w *SendWR) { w.Opcode = OpRead; w.WRID = 2; w.SetRemote(r.addr(rigBytes/2), r.mr.RKey()) })
		if wc := r.ok(a); wc.WRID != 2 || wc.Opcode != WCRead {
			t.Errorf("completion %s", describe(wc))
		}
		if !bytes.Equal(r.mem[:n], r.mem[rigBytes/2:rigBytes/2+n]) {
			t.Errorf("READ of %d bytes: result differs", n)
		}
	}
}
