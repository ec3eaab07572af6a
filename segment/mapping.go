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
	layout layout
	fd     int // memfd, or -1
	huge   bool
	notes  []string

	tracked *handle.Handle
	close   sync.Once
	err     error
}

// Bytes is the whole mapping.
func (m *Mapping) Bytes() []byte { return m.bytes }

// User is the user's part, the first Config.Size bytes.
func (m *Mapping) User() []byte { return m.bytes[:m.layout.user:m.layout.user] }

// System is the runtime's part, Config.System bytes, page-aligned.
func (m *Mapping) System() []byte {
	return m.bytes[m.layout.system:m.layout.end:m.layout.end]
}

// SystemOffset is the offset of System in the mapping.
func (m *Mapping) SystemOffset() uint64 { return m.layout.system }

// Len is the length of the whole mapping in bytes.
func (m *Mapping) Len() int64 { return int64(m.layout.length) }

// FD is the memfd of a shared mapping, which stays the Mapping's, or -1.
func (m *Mapping) FD() int { return m.fd }

// PageSize is the size in bytes of the pages that back the mapping for certain;
// transparent huge pages do not count.
func (m *Mapping) PageSize() int { return int(m.layout.page) }

// HugePages reports whether the pages come from the hugetlb pool.
func (m *Mapping) HugePages() bool { return m.huge }

// Notes are the options that could not be had and why, one sentence each.
func (m *Mapping) Notes() []string { return m.notes }

// Close unmaps the segment. Later calls return what the first one did.
func (m *Mapping) Close() error {
	m.close.Do(func() {
		m.tracked.Close()
		m.err = m.unmap()
	})
	return m.err
}

// track makes a leak of the mapping visible.
func (m *Mapping) track(what string) {
	m.tracked = handle.New(m, what, fmt.Sprintf("of %d bytes", m.layout.length))
}
