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
	// free; otherwise it requests transparent ones.
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

// Config is what to map. Size or Share must be positive, or Layout have regions.
type Config struct {
	// Size is the user's region in bytes, and need not be a multiple of anything.
	Size int64

	// Share, if Size is 0, takes this part (0 < Share <= 1) of what all limits
	// together leave at this moment. Of several segments on one host each takes its share of all:
	// divide by their number.
	Share float64

	// Layout has the library's regions, which are mapped in addition to Size or Share. The zero value
	// has none: then the user's region begins at offset 0.
	Layout Layout

	// HugePages is Auto by default.
	HugePages Pages

	// Align is the alignment of the first byte, a power of two up to MaxAlign; 0 is the page size. It
	// is at least each region's.
	Align int64

	// NUMANode is preferred for the pages, a hint: when the node is full others
	// serve. Default none.
	NUMANode Node

	// Shared makes the mapping a memfd that other processes can map. Default is
	// private anonymous memory.
	Shared bool

	// DeviceMax is the largest region in bytes that the device registers
	// (max_mr_size); 0 is unknown.
	DeviceMax uint64

	// Locked: the memory will be pinned, so that RLIMIT_MEMLOCK counts.
	Locked bool

	// Buffers is how many bytes are going to be pinned beside it.
	Buffers uint64

	host    host // the machine, unless a test puts another in its place
	noRaise bool // RLIMIT_MEMLOCK stays as it is
}

// extent is what a Config comes to once the page size is known. All in bytes.
type extent struct {
	user   uint64 // offset of the user's region
	end    uint64 // its end
	length uint64 // whole mapping, a multiple of page
	page   uint64
	align  uint64
}

func (c *Config) validate() error {
	switch {
	case c.Size < 0 || c.Align < 0:
		return fmt.Errorf("segment: Size %d and Align %d must not be negative", c.Size, c.Align)
	case math.IsNaN(c.Share) || c.Share < 0 || c.Share > 1:
		return fmt.Errorf("segment: Share is %v, want a number above 0 and at most 1", c.Share)
	case c.Size > 0 && c.Share > 0:
		return errors.New("segment: both Size and Share are given; give one")
	case c.Size == 0 && c.Share == 0 && c.Layout.begin == 0:
		return errors.New("segment: none of Size, Share and regions is given")
	case c.Align != 0 && bits.OnesCount64(uint64(c.Align)) != 1 || c.Align > MaxAlign:
		return fmt.Errorf("segment: Align %d is not a power of two up to %d", c.Align, int64(MaxAlign))
	case c.HugePages < Auto || c.HugePages > Require:
		return fmt.Errorf("segment: HugePages has no value %d", c.HugePages)
	}
	return nil
}

// extent places user bytes, behind the regions, on pages of the given size. It fails when the sum
// does not fit an address.
func (c *Config) extent(user, page uint64) (extent, error) {
	x := extent{user: c.Layout.begin, page: page, align: max(uint64(c.Align), c.Layout.align, page)}
	x.end = x.user + user // both are below 1<<63: no overflow
	var ok bool
	x.length, ok = roundUp(x.end, page)
	if !ok || x.length > math.MaxInt-x.align {
		return x, &LimitError{Asked: x.end, Limit: math.MaxInt - x.align, Which: "address space of a process",
			Remedy: "ask for less", Regions: c.parts(user)}
	}
	return x, nil
}

// Locks is how many bytes a segment of Size takes of RLIMIT_MEMLOCK on base pages, with Buffers.
func (c Config) Locks() (uint64, error) {
	x, err := c.extent(uint64(c.Size), uint64(os.Getpagesize()))
	return x.length + c.Buffers, err
}

// parts are the regions with the user's, for errors.
func (c *Config) parts(user uint64) []Region {
	return append(c.Layout.Regions(), Region{Name: User, Size: user})
}

// roundUp rounds n up to a multiple of the power of two to.
func roundUp(n, to uint64) (uint64, bool) {
	r := (n + to - 1) &^ (to - 1)
	return r, r >= n && r <= math.MaxInt
}
