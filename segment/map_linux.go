package segment

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Prepare checks every limit, and maps nothing yet.
func Prepare(c Config) (*Plan, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	if c.host == nil {
		c.host = machine{}
	}
	lim := c.host.limits()
	p := &Plan{c: c}
	if c.Locked && !lim.ipcLock && !c.noRaise && lim.memlock < lim.memlockHard { // what is pinned later counts too
		lim.memlock, p.raise = lim.memlockHard, lim.memlockHard
	}
	if c.HugePages != Off {
		var err error
		p.huge, err = p.extent(lim, true)
		if err != nil && c.HugePages == Require {
			return nil, err
		}
		if err != nil && !errors.Is(err, errSmall) {
			p.notes = append(p.notes, "no huge pages: "+err.Error())
		}
		p.pools = lim.pools(true)
	}
	if c.HugePages != Require {
		if p.base, p.baseErr = p.extent(lim, false); p.baseErr != nil && p.huge == nil {
			return nil, p.baseErr
		}
	}
	p.pools = append(p.pools, lim.pools(false)...)
	return p, nil
}

// Map makes the segment.
func (p *Plan) Map() (*Mapping, error) {
	if p.raise > 0 && p.c.host.raiseMemlock(p.raise) != nil {
		p.c.noRaise = true
		return Map(p.c)
	}
	if p.huge != nil {
		m, err := p.create(*p.huge)
		if err == nil || p.c.HugePages == Require {
			return m, err
		}
		p.WithoutHugePages(err.Error())
	}
	if p.base == nil {
		return nil, p.baseErr
	}
	return p.create(*p.base)
}

// errSmall: a segment does not fill one huge page, which needs no note.
var errSmall = errors.New("segment is smaller than a huge page")

// extent returns a segment's extent with one kind of pages.
func (p *Plan) extent(lim limits, huge bool) (*extent, error) {
	c, page := &p.c, uint64(os.Getpagesize())
	if huge {
		if page = lim.hugePage; page == 0 {
			return nil, errors.New("segment: this kernel has no huge pages")
		}
	}
	bounds := c.bounds(&lim, huge)
	user := c.wanted(bounds, page)
	x, err := c.extent(user, page)
	if err != nil {
		return nil, err
	}
	if huge && c.HugePages == Auto && x.end < page {
		return nil, errSmall
	}
	if err := admit(x.length, bounds, c.parts(user)); err != nil {
		return nil, err
	}
	return &x, nil
}

// create maps what has been decided on.
func (p *Plan) create(x extent) (*Mapping, error) {
	m := &Mapping{extent: x, layout: p.c.Layout, fd: -1, huge: x.page != uint64(os.Getpagesize()), notes: p.notes}
	if err := m.create(&p.c); err != nil {
		return nil, err
	}
	return m, nil
}

// wanted is the user's size: as given, or the share of the memory that the bounds leave.
func (c *Config) wanted(b []bound, page uint64) uint64 {
	if c.Share == 0 {
		return uint64(c.Size)
	}
	room := min(tightest(b).room, 1<<62)
	want := min(uint64(float64(room)*c.Share), room)
	// The regions and the rounding of the end come out of the room.
	return left(min(want, left(room, c.Layout.begin)), page) &^ (uint64(os.Getpagesize()) - 1)
}

// create makes the mapping that m.extent describes.
func (m *Mapping) create(c *Config) (err error) {
	flags := unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	if c.Shared {
		flags = unix.MAP_SHARED
		if m.fd, err = sealedFile(m.extent.length, m.huge); err != nil {
			return err
		}
	}
	if m.huge && !c.Shared {
		flags |= unix.MAP_HUGETLB | bits.TrailingZeros64(m.extent.page)<<unix.MAP_HUGE_SHIFT
	}
	if m.bytes, err = mapAligned(m.fd, flags, m.extent.length, m.extent.align); err != nil {
		if m.fd >= 0 {
			unix.Close(m.fd)
		}
		return err
	}
	m.mapped("segment")
	m.advise(c)
	if m.huge {
		if err := m.populate(); err != nil {
			return errors.Join(err, m.Close())
		}
	}
	return nil
}

// sealedFile returns a memfd of n bytes, the size of which is fixed.
func sealedFile(n uint64, huge bool) (int, error) {
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	if huge {
		flags |= unix.MFD_HUGETLB
	}
	fd, err := unix.MemfdCreate("ibconduit-segment", flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // MFD_NOEXEC_SEAL came with Linux 6.3
		fd, err = unix.MemfdCreate("ibconduit-segment", flags)
	}
	if err != nil {
		return -1, fmt.Errorf("segment: memfd_create: %w%s", err, memfdRemedy(err))
	}
	if err = unix.Ftruncate(fd, int64(n)); err != nil {
		err = fmt.Errorf("segment: memfd of %d bytes: %w", n, err)
	} else if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		err = fmt.Errorf("segment: sealing the memfd: %w", err)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// memfdRemedy is what to do about an error of memfd_create(2), which itself knows EFAULT, EINVAL,
// EMFILE, ENFILE and ENOMEM: others are a sandbox's.
func memfdRemedy(err error) string {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, unix.ENOSYS):
		return ": a sandbox forbids it; allow memfd_create in its seccomp profile (docker run --security-opt seccomp=FILE)"
	case errors.Is(err, unix.EMFILE):
		return ": this process has too many files open; raise ulimit -n"
	}
	return ""
}

const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// mapAligned maps n bytes at a multiple of align. For more than the kernel
// aligns by itself it reserves a larger range and gives back the unused part.
func mapAligned(fd, flags int, n, align uint64) ([]byte, error) {
	const prot = unix.PROT_READ | unix.PROT_WRITE
	fail := func(err error) ([]byte, error) {
		return nil, fmt.Errorf("segment: mmap of %d bytes: %w", n, err)
	}
	if align <= uint64(os.Getpagesize()) || flags&unix.MAP_HUGETLB != 0 && align <= 2<<20 {
		p, err := unix.MmapPtr(fd, 0, nil, uintptr(n), prot, flags)
		if err != nil {
			return fail(err)
		}
		return unsafe.Slice((*byte)(p), n), nil
	}
	whole := uintptr(n + align)
	r, err := unix.MmapPtr(-1, 0, nil, whole, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return fail(err)
	}
	skip := -uintptr(r) & uintptr(align-1)
	at := unsafe.Add(r, skip)
	if _, err := unix.MmapPtr(fd, 0, at, uintptr(n), prot, flags|unix.MAP_FIXED); err != nil {
		_ = unix.MunmapPtr(r, whole)
		return fail(err)
	}
	if skip > 0 {
		_ = unix.MunmapPtr(r, skip)
	}
	if tail := whole - skip - uintptr(n); tail > 0 {
		_ = unix.MunmapPtr(unsafe.Add(at, n), tail)
	}
	return unsafe.Slice((*byte)(at), n), nil
}

// advise gives the kernel the hints that a mapping works without.
func (m *Mapping) advise(c *Config) {
	if c.NUMANode > 0 {
		if err := preferNode(m.bytes, int(c.NUMANode)-1); err != nil {
			m.notes = append(m.notes, fmt.Sprintf("NUMA node %d is not preferred: %v", c.NUMANode-1, err))
		}
	}
	if !m.huge && c.HugePages == Auto && m.extent.length >= 2<<20 {
		if err := unix.Madvise(m.bytes, unix.MADV_HUGEPAGE); err != nil {
			m.notes = append(m.notes, fmt.Sprintf("no transparent huge pages: %v", err))
		}
	}
}

// preferNode sets the memory policy of b (mbind(2)).
func preferNode(b []byte, node int) error {
	const (
		mpolPreferred = 1    // linux/mempolicy.h
		maxNodes      = 1024 // CONFIG_NODES_SHIFT is at most 10
	)
	if node >= maxNodes {
		return fmt.Errorf("Linux has at most %d nodes", maxNodes)
	}
	var mask [maxNodes / 64]uint64
	mask[node/64] = 1 << (node % 64)
	// The kernel takes maxnode as one more than the number of bits.
	_, _, errno := unix.Syscall6(unix.SYS_MBIND, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)),
		mpolPreferred, uintptr(unsafe.Pointer(&mask)), maxNodes+1, 0)
	if errno != 0 {
		return fmt.Errorf("mbind: %w", errno)
	}
	return nil
}

// populate gives every page its memory now, or returns why that cannot be.
func (m *Mapping) populate() error {
	err := unix.Madvise(m.bytes, unix.MADV_POPULATE_WRITE)
	if errors.Is(err, unix.EINVAL) && m.fd >= 0 { // came with Linux 5.14
		err = unix.Fallocate(m.fd, 0, 0, int64(m.extent.length))
	}
	if err != nil {
		return fmt.Errorf("segment: populating %d bytes of %d-byte pages: %w", m.extent.length, m.extent.page, err)
	}
	return nil
}

func (m *Mapping) unmap() error {
	err := unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(m.bytes)), uintptr(len(m.bytes)))
	if err != nil {
		err = fmt.Errorf("segment: munmap: %w", err)
	}
	if m.fd >= 0 {
		if e := unix.Close(m.fd); e != nil {
			err = errors.Join(err, fmt.Errorf("segment: closing the memfd: %w", e))
		}
	}
	return err
}
