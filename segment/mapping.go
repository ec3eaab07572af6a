package segment

import (
	"fmt"
	"sync"

	"github.com/ibconduit/conduit/internal/handle"
)

// Mapping is a segment of this rank, or a peer's mapped here. Its methods may
// be called from any goroutine, Close last: afterwards no slice that the
// Mapping gave away may be touched.
type Mapping struct {
	bytes  []byte
	user   []byte // part of it
	extent extent
	layout Layout // of this rank's own
	fd     int    // memfd, or -1
	huge   bool
	notes  []string

	tracked *handle.Handle
	close   sync.Once
	err     error
}

// Bytes is the whole mapping.
func (m *Mapping) Bytes() []byte { return m.bytes }

// User is the user's region, Config.Size bytes; of a peer's segment, as its regions are not
// known here, it is all.
func (m *Mapping) User() []byte { return m.user }

// Region is a region of this rank's segment, and its offset; nil for a name that Config.Layout does
// not have.
func (m *Mapping) Region(name string) (bytes []byte, off uint64) {
	off, size, ok := m.layout.find(name)
	if !ok {
		return nil, 0
	}
	return m.bytes[off : off+size : off+size], off
}

// Len is the length of the whole mapping in bytes.
func (m *Mapping) Len() int64 { return int64(m.extent.length) }

// FD is the memfd of a shared mapping, which stays the Mapping's, or -1.
func (m *Mapping) FD() int { return m.fd }

// PageSize is the size in bytes of the pages that back the mapping for certain;
// transparent huge pages do not count.
func (m *Mapping) PageSize() int { return int(m.extent.page) }

// HugePages reports whether the pages come from the hugetlb pool.
func (m *Mapping) HugePages() bool { return m.huge }

// Notes are the options that could not be had and why, one sentence each.
func (m *Mapping) Notes() []string { return m.notes }

// Close unmaps the segment. Later calls return the first one's error.
func (m *Mapping) Close() error {
	m.close.Do(func() {
		m.tracked.Close()
		m.err = m.unmap()
	})
	return m.err
}

// mapped is called when the bytes are there. It makes a leak of the mapping visible.
func (m *Mapping) mapped(what string) {
	m.user = m.bytes[m.extent.user:m.extent.end:m.extent.end]
	m.tracked = handle.New(m, what, fmt.Sprintf("of %d bytes", m.extent.length))
}
