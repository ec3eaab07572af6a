package segment

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"os"
)

// Pages is whether to use huge pages of the hugetlb pool.
type Pages int

const (
	// Auto uses huge pages when the segment fills at least one and enough are
	// free; otherwise it asks for transparent ones.
	Auto Pages = iota
	// Off uses base pages only.
	Off
	// Require fails when there are not enough huge pages.
	Require
)

// Node names a NUMA node; see OnNode. The zero value and -1 name none.
type Node int

// OnNode is the Node with the kernel's number n.
func OnNode(n int) Node { return Node(n + 1) }

// Config is what to map. Either Size, Share or System must be positive.
type Config struct {
	// Size is the user's part in bytes, and need not be a multiple of anything.
	Size int64

	// Share, if Size is 0, takes this part (0 < Share <= 1) of what all limits
	// together leave at this moment. Ranks of one host do not know of each
	// other: divide by their number.
	Share float64

	// System is the runtime's part in bytes, in addition to Size or Share.
	System int64

	// HugePages is Auto by default.
	HugePages Pages

	// Align is the alignment of the first byte, a power of two; 0 is the page size.
	Align int64

	// NUMANode is preferred for the pages, a hint: when the node is full others
	// serve. Default none.
	NUMANode Node

	// Shared makes the mapping a memfd that other processes can map. Default is
	// private anonymous memory.
	Shared bool

	// Prefault populates the base pages now instead of at their first use.
	Prefault bool

	// DeviceMax is the largest region in bytes that the device registers
	// (max_mr_size); 0 is unknown.
	DeviceMax uint64

	// Locked: the memory will be pinned, so that RLIMIT_MEMLOCK counts.
	Locked bool

	host host // the machine, unless a test puts another in its place
}

// layout is what a Config comes to once the page size is known. All in bytes.
type layout struct {
	user   uint64 // bytes of the user
	system uint64 // offset of the runtime's part
	end    uint64 // end of the runtime's part
	length uint64 // whole mapping, a multiple of page
	page   uint64
	align  uint64
}

func (c *Config) validate() error {
	switch {
	case c.Size < 0 || c.System < 0 || c.Align < 0:
		return fmt.Errorf("segment: Size %d, System %d and Align %d must not be negative", c.Size, c.System, c.Align)
	case math.IsNaN(c.Share) || c.Share < 0 || c.Share > 1:
		return fmt.Errorf("segment: Share is %v, want a number above 0 and at most 1", c.Share)
	case c.Size > 0 && c.Share > 0:
		return errors.New("segment: both Size and Share are given; give one")
	case c.Size == 0 && c.Share == 0 && c.System == 0:
		return errors.New("segment: none of Size, Share and System is given")
	case c.Align != 0 && bits.OnesCount64(uint64(c.Align)) != 1:
		return fmt.Errorf("segment: Align %d is not a power of two", c.Align)
	case c.HugePages < Auto || c.HugePages > Require:
		return fmt.Errorf("segment: HugePages has no value %d", c.HugePages)
	}
	return nil
}

// layout places user bytes on pages of the given size. It fails when the sum
// does not fit an address.
func (c *Config) layout(user, page uint64) (layout, error) {
	base := uint64(os.Getpagesize())
	l := layout{user: user, page: page, align: max(uint64(c.Align), page)}
	var ok1, ok2 bool
	l.system, ok1 = roundUp(user, base)
	l.end = l.system + uint64(c.System) // both are below 1<<63: no overflow
	l.length, ok2 = roundUp(l.end, page)
	if !ok1 || !ok2 || l.length > math.MaxInt-l.align {
		return l, &LimitError{Asked: l.end, Limit: math.MaxInt - l.align, Which: "address space of a process",
			Remedy: "ask for less"}
	}
	return l, nil
}

// roundUp rounds n up to a multiple of the power of two to.
func roundUp(n, to uint64) (uint64, bool) {
	r := (n + to - 1) &^ (to - 1)
	return r, r >= n && r <= math.MaxInt
}
