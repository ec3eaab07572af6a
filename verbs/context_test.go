//go:build linux && cgo

package verbs

import (
	"net"
	"testing"
	"time"
	"unsafe"

	"github.com/ibconduit/conduit/internal/rdmatest"
)

func TestLimitsPortGIDsAndPKeysAreThoseOfTheDevice(t *testing.T) {
	r := newRig(t)
	a := r.ctx.Attr()
	if a.Ports < 1 || a.MaxQP < 1 || a.MaxQPWR < 1 || a.MaxSGE < 1 || a.MaxCQE < 1 || a.MaxMRSize == 0 || a.MaxQPReadAtomic < 1 || a.MaxSRQ < 1 || a.MaxSRQWR < 1 {
		t.Errorf("limits %+v", a)
	}
	if r.port.State != PortActive || r.port.ActiveMTU.Bytes() < 256 || r.port.GIDTableLen < 1 || r.port.MaxMsgSize < 1<<20 {
		t.Errorf("port %+v", r.port)
	}
	if r.port.LinkLayer == LinkEthernet {
		if ifc, err := net.InterfaceByName(r.gid.Netdev); err != nil || ifc == nil {
			t.Errorf("netdev %q of GID %d: %v", r.gid.Netdev, r.gid.Index, err)
		}
		if r.gid.Type != GIDTypeRoCEv2 || !r.gid.GID.Addr().Is4() {
			t.Errorf("chose %+v", r.gid)
		}
	}
	keys := must(r.ctx.PKeys(1))(t)
	if len(keys) != r.port.PKeyTableLen || keys[0]&0x7fff == 0 {
		t.Errorf("P_Keys %x of a table of %d", keys[:min(len(keys), 4)], r.port.PKeyTableLen)
	}
	for _, p := range []int{0, -1, a.Ports + 1, 256 + 1} {
		if _, err := r.ctx.Port(p); err == nil {
			t.Errorf("port %d exists", p)
		}
	}
}

func TestRegionReportsWhatWasRegistered(t *testing.T) {
	r := newRig(t)
	mr := must(r.pd.Register(unsafe.Pointer(&r.mem[100]), 5000, AccessAll))(t)
	if mr.Addr() != r.addr(100) || mr.Len() != 5000 || mr.LKey() == r.mr.LKey() {
		t.Errorf("%#x %d lkey %#x", mr.Addr(), mr.Len(), mr.LKey())
	}
	check(t, mr.Close())
}

func TestPortCountersCountTraffic(t *testing.T) {
	r := newRig(t)
	a, _ := r.pair(endConfig{})
	before := must(PortCounters(r.ctx.Name(), 1))(t)
	if _, ok := before["sent_pkts"]; !ok {
		rdmatest.Lacks(t, r.ctx.Name(), "counter sent_pkts")
	}
	r.fillWrites(a, Signaled)
	check(t, a.bell.Send(a.qp, a.send, 0, 8))
	must(a.bell.Ring(8, testTimeout))(t)
	// The kernel answers from a cache for a while.
	after := before
	for deadline := time.Now().Add(testTimeout); after["sent_pkts"] < before["sent_pkts"]+8 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		after = must(PortCounters(r.ctx.Name(), 1))(t)
	}
	if after["sent_pkts"] < before["sent_pkts"]+8 {
		t.Errorf("sent_pkts %d, then %d", before["sent_pkts"], after["sent_pkts"])
	}
}

func TestInitForkChangesNothingOnASafeKernel(t *testing.T) {
	rdmatest.Device(t)
	if GetForkStatus() == ForkUnneeded {
		check(t, InitFork())
		if GetForkStatus() != ForkUnneeded {
			t.Error("InitFork changed it")
		}
	}
}
