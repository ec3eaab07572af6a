package conduit_test

import (
	"context"
	"fmt"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/cache"
)

// Rank 0 writes into the memory of rank 2 and tells rank 1, which reads it there. Without the Flush
// the word that rank 1 waits for could come before the data; without WaitUntil, which acquires,
// rank 1 could read what its cache has kept of an earlier time.
func Example_cache() {
	const data, ready, words = 64, 0, 4 // offsets in a segment, in bytes; behind the word for WaitUntil
	cfg := conduit.Config{Fabric: conduit.FabricSHM, SegmentSize: 1 << 16, Cache: &cache.Config{Mapped: true}}
	err := conduit.RunLocalConfig(context.Background(), 3, cfg, func(job *conduit.Job) error {
		ctx := context.Background()
		w, err := job.NewWorker()
		if err != nil {
			return err
		}
		defer w.Close()
		p := conduit.At[int64](2, data)
		switch job.Rank() {
		case 0: // the producer
			for i := range words {
				if err := conduit.Put(w, p.Add(i), int64(i*i)); err != nil { // kept, to be written later
					return err
				}
			}
			if err := w.Flush(ctx); err != nil { // release: all of it is at rank 2
				return err
			}
			if err := conduit.Put(w, conduit.At[uint64](1, ready), 1); err != nil {
				return err
			}
			return w.Flush(ctx) // and so is the word
		case 1: // the consumer
			if _, err := conduit.Get(w, p); err != nil { // a copy of the line is kept
				return err
			}
			if err := w.WaitUntil(ctx, ready, conduit.Equal, 1); err != nil { // acquire: forget it
				return err
			}
			for i := range words {
				v, err := conduit.Get(w, p.Add(i)) // the first one fetches a line, the others read it
				if err != nil {
					return err
				}
				fmt.Print(v, " ")
			}
		}
		return nil
	})
	fmt.Println(err)
	// Output: 0 1 4 9 <nil>
}
