package segment

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MapFD maps the first n bytes of a peer's segment, with 0 all of it. The descriptor stays the
// caller's and may be closed afterwards. The file must be a memfd that cannot
// shrink and that holds n bytes; anything else is refused, because its owner
// could take memory from under our loads and stores.
func MapFD(fd int, n int64) (*Mapping, error) {
	page, huge, err := checkFile(fd)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("segment: fstat of a peer's segment: %w", err)
	}
	if n == 0 {
		n = st.Size
	}
	if n <= 0 {
		return nil, fmt.Errorf("segment: a peer's segment cannot have %d bytes", n)
	}
	length, ok := roundUp(uint64(n), page)
	if !ok || uint64(st.Size) < length {
		return nil, fmt.Errorf("segment: a peer's segment has %d bytes, its owner published %d", st.Size, n)
	}
	p, err := unix.MmapPtr(fd, 0, nil, uintptr(length), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("segment: mmap of a peer's %d bytes: %w", length, err)
	}
	m := &Mapping{
		bytes:  unsafe.Slice((*byte)(p), length),
		extent: extent{end: uint64(n), length: length, page: page},
		fd:     -1,
		huge:   huge,
	}
	m.mapped("peer's segment")
	return m, nil
}

// checkFile refuses files other than a memfd sealed against shrinking, and returns
// the size of its pages.
func checkFile(fd int) (page uint64, huge bool, err error) {
	// Only memfds have seals; other files answer EINVAL (fcntl(2), F_GET_SEALS).
	s, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return 0, false, fmt.Errorf("segment: a peer's segment is not a memfd: %w", err)
	}
	if s&unix.F_SEAL_SHRINK == 0 {
		return 0, false, fmt.Errorf("segment: a peer's segment is not sealed against shrinking (seals %#x): %w",
			s, unix.EPERM)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return 0, false, fmt.Errorf("segment: fstatfs of a peer's segment: %w", err)
	}
	if uint32(fs.Type) == unix.HUGETLBFS_MAGIC {
		return uint64(fs.Bsize), true, nil
	}
	return uint64(os.Getpagesize()), false, nil
}
