package cache_test

import (
	"context"
	"testing"

	"github.com/ibconduit/conduit/cache"
	"github.com/ibconduit/conduit/internal/fabric"
)

// Columns of twice the cache's pages: what of a line is left when the next column comes is nothing,
// but each walk is like the one before.
func TestLongColumnsAreFetchedAhead(t *testing.T) {
	t.Run("at once", func(t *testing.T) { walkColumns(t, &instant{}) })
	t.Run("late", func(t *testing.T) { walkColumns(t, &slow{}) })
}

// slow is a lane on which nothing is complete before it is waited for.
type slow struct {
	instant
	posted []fabric.Tag
}

func (l *slow) Post(b *fabric.Batch, q *fabric.Completions, _ fabric.Flag) error {
	for _, g := range b.Groups() {
		q.Expect()
		l.posted = append(l.posted, g.Tag)
	}
	return b.Check(q)
}

func (l *slow) Await(_ context.Context, q *fabric.Completions) error {
	for _, tag := range l.posted {
		q.Tell(tag, nil)
	}
	l.posted = l.posted[:0]
	return nil
}

func walkColumns(t *testing.T, l fabric.Lane) {
	const rows, row, columns = 512, 4096, 64
	c, err := cache.New(oneRank{}, instantLanes{l}, cache.Config{Pages: 256, Size: func(int) uint64 { return 2 * rows * row }})
	if err != nil {
		t.Fatal(err)
	}
	var b [8]byte
	for column := range columns {
		for k := range rows {
			if err := c.Get(t.Context(), 0, uint64(k*row+8*column), b[:]); err != nil {
				t.Fatal(err)
			}
		}
		if s := c.Stats(); column%32 == 0 {
			t.Logf("column %d: %d hits, %d misses, %d direct; %d fetched ahead, %d for nothing", column, s.GetHits, s.GetMisses, s.GetsDirect, s.Prefetched, s.PrefetchUnused)
		}
	}
	if err := c.Verify(); err != nil {
		t.Fatal(err)
	}
	s := c.Stats()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if gets := uint64(columns * rows); s.GetHits < gets*9/10 || s.PrefetchUnused > gets/20 {
		t.Errorf("of %d gets: %+v", gets, s)
	}
}
