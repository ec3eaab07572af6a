//go:build linux

package verbs

import (
	"errors"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestAChainIsLinkedToARing(t *testing.T) {
	c, err := NewSendChain(ChainConfig{Slots: 3, SGEs: 2, Inline: 20})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i := range 3 {
		w := c.WR(i)
		if w.next != uintptr(unsafe.Pointer(c.WR((i+1)%3))) {
			t.Errorf("slot %d is not linked to the next", i)
		}
		if w.sgList != uintptr(unsafe.Pointer(&c.SGEs(i)[0])) || len(c.SGEs(i)) != 2 || w.numSGE != 1 {
			t.Errorf("slot %d: scatter list %#x, %d", i, w.sgList, w.numSGE)
		}
		if len(c.Area(i)) != 24 || c.AreaAddr(i)%8 != 0 {
			t.Errorf("slot %d: area of %d at %#x", i, len(c.Area(i)), c.AreaAddr(i))
		}
		for k := range c.Area(i) {
			c.Area(i)[k] = byte(i + 1)
		}
	}
	for i := range 3 {
		for _, b := range c.Area(i) {
			if b != byte(i+1) {
				t.Fatalf("areas overlap at slot %d", i)
			}
		}
		if c.WR(i).Opcode != OpSend || c.WR(i).numSGE != 1 {
			t.Errorf("the area of slot %d lies over the requests", i)
		}
	}
	c.SetInline(1, 8)
	if w := c.WR(1); w.Flags&Inline == 0 || c.SGEs(1)[0] != (SGE{Addr: c.AreaAddr(1), Length: 8}) {
		t.Errorf("SetInline: %+v %+v", w, c.SGEs(1)[0])
	}
}

func TestChainRefusesWhatIsOutOfRange(t *testing.T) {
	for _, cfg := range []ChainConfig{{Slots: MaxChainSlots + 1}, {SGEs: 257}, {Inline: -1}} {
		if c, err := NewSendChain(cfg); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%+v: %v, %v", cfg, c, err)
		}
		if c, err := NewRecvChain(cfg); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%+v: %v, %v", cfg, c, err)
		}
	}
}

func TestWRPanicsOnAClosedChain(t *testing.T) {
	c, err := NewRecvChain(ChainConfig{Slots: 2})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("WR of a closed chain returned")
		}
	}()
	c.WR(0).WRID = 1
}

func TestChainSettersDoNotAllocate(t *testing.T) {
	c, err := NewSendChain(ChainConfig{Slots: 4, Inline: 32})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if n := testing.AllocsPerRun(100, func() {
		w := c.WR(2)
		w.Opcode, w.Flags, w.WRID = OpWrite, Signaled, 7
		w.SetRemote(0x1000, 5)
		c.SetLocal(2, 0x2000, 8, 9)
		c.SetInline(2, 8)
		w.SetFetchAdd(0x1000, 5, 1)
		w.SetCompareSwap(0x1000, 5, 1, 2)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
