package cache

import (
	"errors"
	"fmt"

	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/segment"
)

// slab is the memory that networks read and write: pages, and behind them the slots where fetches
// arrive. It lies outside of the Go heap, so that the collector neither scans nor moves it, and is
// registered once with each network.
type slab struct {
	mapping *segment.Mapping
	bytes   []byte
	known   []*fabric.Memory // by lane
}

func newSlab(lanes env.Lanes, size int) (s slab, err error) {
	if s.mapping, err = segment.Map(segment.Config{Size: int64(size), HugePages: segment.Off}); err != nil {
		return s, fmt.Errorf("cache: memory for pages: %w", err)
	}
	s.bytes = s.mapping.Bytes()[:size:size]
	for _, l := range lanes.All() {
		m, err := l.Register(s.bytes)
		if err != nil {
			return s, errors.Join(fmt.Errorf("cache: registration of pages: %w", err), s.close())
		}
		s.known = append(s.known, m)
	}
	return s, nil
}

// close gives the memory back, unless an operation in flight still uses it.
func (s *slab) close() error {
	for i, m := range s.known {
		if m == nil {
			continue
		}
		if err := m.Close(); err != nil {
			return fmt.Errorf("cache: close: %w", err)
		}
		s.known[i] = nil
	}
	if s.mapping == nil {
		return nil
	}
	err := s.mapping.Close()
	s.mapping, s.bytes = nil, nil
	return err
}
