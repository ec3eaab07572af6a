package segment

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/bits"
	"strings"
)

// Region is memory of a segment that the library requests under a name.
type Region struct {
	Name  string // not empty, and not User
	Size  uint64 // in bytes, from 1 up
	Align uint64 // of offset and address in bytes, a power of two up to MaxAlign; 0: 64
}

// User names the user's region in texts about a layout.
const User = "the user's"

// MaxAlign bounds Region.Align and Config.Align.
const MaxAlign = 1 << 40

const (
	regionAlign = 64 // a cache line of amd64 and arm64
	// userAlign is the largest base page of Linux on amd64 and arm64: the user's region begins on a
	// page of its own, at an offset that does not depend on the machine.
	userAlign = 64 << 10
)

// Layout is where the regions of a segment lie. It follows from the regions alone: ranks that
// request the same regions in the same order have them at the same offsets.
type Layout struct {
	placed []placed
	begin  uint64 // of the user's region
	align  uint64 // the largest of a region
}

type placed struct {
	Region
	off uint64
}

// Place lays regions out in their order, from offset 0; the user's region comes last.
func Place(regions ...Region) (Layout, error) {
	l := Layout{align: 1}
	end := uint64(0)
	for _, r := range regions {
		if r.Align == 0 {
			r.Align = regionAlign
		}
		switch _, _, twice := l.find(r.Name); {
		case r.Name == "" || r.Name == User || twice:
			return Layout{}, fmt.Errorf("segment: a region's name is %q: names must differ, and none be empty or %q",
				r.Name, User)
		case r.Size == 0:
			return Layout{}, fmt.Errorf("segment: region %q has no bytes: ask for 1 or more, or for no region", r.Name)
		case bits.OnesCount64(r.Align) != 1 || r.Align > MaxAlign:
			return Layout{}, fmt.Errorf("segment: region %q has alignment %d, which is not a power of two up to %d",
				r.Name, r.Align, uint64(MaxAlign))
		}
		off, ok := roundUp(end, r.Align)
		if !ok || r.Size > math.MaxInt-off {
			return Layout{}, l.tooLarge(append(l.Regions(), r), off)
		}
		l.placed = append(l.placed, placed{r, off})
		end, l.align = off+r.Size, max(l.align, r.Align)
	}
	var ok bool
	if l.begin, ok = roundUp(end, userAlign); !ok {
		return Layout{}, l.tooLarge(l.Regions(), end)
	}
	return l, nil
}

func (l *Layout) tooLarge(regions []Region, asked uint64) error {
	return &LimitError{Asked: asked, Limit: math.MaxInt, Which: "address space of a process",
		Remedy: "ask for less", Regions: regions}
}

// Regions are the requested ones, with their alignments.
func (l *Layout) Regions() []Region {
	regions := make([]Region, len(l.placed))
	for i := range l.placed {
		regions[i] = l.placed[i].Region
	}
	return regions
}

// UserOffset is where the user's region begins, in bytes from the begin of the segment. Everything
// in front of it is the library's.
func (l *Layout) UserOffset() uint64 { return l.begin }

// find is where a region lies, and its size.
func (l *Layout) find(name string) (off, size uint64, ok bool) {
	for i := range l.placed {
		if p := &l.placed[i]; p.Name == name {
			return p.off, p.Size, true
		}
	}
	return 0, 0, false
}

// String is the layout in text, one region a line: what ranks send each other when their layouts
// differ.
func (l *Layout) String() string {
	var b strings.Builder
	for i := range l.placed {
		p := &l.placed[i]
		fmt.Fprintf(&b, "%q at %d: %d bytes, aligned to %d\n", p.Name, p.off, p.Size, p.Align)
	}
	fmt.Fprintf(&b, "%s at %d", User, l.begin)
	return b.String()
}

// Hash is of all of the layout: equal for equal ones, different for others but once in 2^64.
func (l *Layout) Hash() uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(l.String())) // never fails
	return h.Sum64()
}

// FirstDifference returns the first lines in which the texts of two layouts differ; "nothing" is in
// the place of a line that one of them lacks. The texts may be anything.
func FirstDifference(a, b string) (ofA, ofB string) {
	as, bs := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range max(len(as), len(bs)) {
		ofA, ofB = "nothing", "nothing"
		if i < len(as) {
			ofA = as[i]
		}
		if i < len(bs) {
			ofB = bs[i]
		}
		if ofA != ofB {
			break
		}
	}
	return ofA, ofB
}
