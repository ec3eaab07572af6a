package conduit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/internal/rdmatest"
	"github.com/ibconduit/conduit/segment"
)

// A device needs a translation of its own for huge pages, and the peers of a host must map them as
// such.
func TestSegmentsOnHugePagesAreReadAndWrittenByAll(t *testing.T) {
	// The VM has a pool of its own: there also over shared memory, which it leaves out one level up.
	t.Run("reserved", func(t *testing.T) { fabrics(t, onHugePages) })
}

func onHugePages(t *testing.T, cfg Config) {
	const ranks = 3
	reserveHugePages(t, 7*ranks)
	cfg.HugePages = segment.Require
	runLocal(t, ranks, cfg, func(ctx context.Context, j *Job) error {
		if !j.seg.HugePages() {
			return errors.New("the segment is on small pages")
		}
		return withWorker(j, func(w *Worker) error {
			const n = 3<<20 + 17 // more than one page
			to := (j.Rank() + 1) % ranks
			block := make([]byte, n)
			pattern(block, j.Rank())
			if err := PutSlice(w, At[byte](to, 64), block); err != nil {
				return err
			}
			if _, err := FetchAdd(w, At[uint64](0, 0), 1); err != nil {
				return err
			}
			if err := j.Barrier(ctx); err != nil {
				return err
			}
			if err := samePattern(j.Segment()[64:][:n], (j.Rank()+ranks-1)%ranks); err != nil {
				return fmt.Errorf("what was put: %w", err)
			}
			clear(block)
			if err := GetSlice(w, block, At[byte](to, 64)); err != nil {
				return err
			}
			sum, err := Get(w, At[uint64](0, 0))
			if err == nil && sum != ranks {
				err = fmt.Errorf("%d atomics arrived, want %d", sum, ranks)
			}
			return errors.Join(err, samePattern(block, j.Rank()), j.Barrier(ctx))
		})
	})
}

// reserveHugePages adds to the pool of a VM, which is there for tests; on other machines it takes
// the pool as it is.
func reserveHugePages(t *testing.T, n int) {
	t.Helper()
	const pool = "/proc/sys/vm/nr_hugepages"
	size := func() int {
		text, err := os.ReadFile(pool)
		if errors.Is(err, os.ErrNotExist) { // a kernel without them
			return 0
		}
		if err != nil {
			t.Fatal(err)
		}
		pages, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		return pages
	}
	before := size()
	if !rdmatest.Machine() {
		if before < n {
			t.Skipf("%d huge pages are reserved here, and %d are wanted; hack/softroce/vm has its own", before, n)
		}
		return
	}
	if err := os.WriteFile(pool, []byte(strconv.Itoa(before+n)), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(pool, []byte(strconv.Itoa(before)), 0); err != nil {
			t.Error(err)
		}
	})
	if got := size(); got < before+n {
		t.Fatalf("the VM has room for %d huge pages, want %d", got, before+n)
	}
}
