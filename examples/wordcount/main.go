// Command wordcount: a hash table that all ranks share. Its buckets are a static array; an entry is
// memory of the heap of the rank that inserted it, and is found, counted and freed by any.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"sync/atomic"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/am"
)

const words, each = 200, 3000 // different ones, and how many a rank counts

// buckets hold the first entry of each chain, as a link. They are 0 when the job begins.
var buckets = conduit.Shared[uint64]("wordcount.buckets", 128, conduit.Cyclic)

// entry is a word, the link of the next entry, and how often the word was counted.
type entry [3]uint64

// link is an entry in 64 bits, which an atomic can exchange; 0 is none.
func link(p conduit.Ptr[entry]) uint64 { return uint64(p.Rank()+1)<<48 | p.Offset() }

func follow(l uint64) conduit.Ptr[entry] { return conduit.At[entry](int(l>>48)-1, l&(1<<48-1)) }

// inserted is how many entries this rank has made. The others get it.
var inserted atomic.Uint64
var ask = am.Handle("wordcount.inserted", func(c *am.Call) { _ = c.Reply(inserted.Load()) })

func main() {
	job, err := conduit.Join(context.Background(), conduit.Config{SegmentSize: 4 << 20, HeapSize: 2 << 20})
	if err == nil {
		err = errors.Join(tally(context.Background(), job), job.Close())
	}
	if err != nil {
		log.Fatal(err)
	}
}

// tally is what a rank does.
func tally(ctx context.Context, job *conduit.Job) (err error) {
	w, err := job.NewWorker()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	for _, word := range spoken(job.Rank()) {
		if err := count(ctx, w, word); err != nil {
			return err
		}
	}
	err = errors.Join(job.Barrier(ctx), check(ctx, w), job.Barrier(ctx))
	return errors.Join(err, clear(ctx, w))
}

// spoken are the words that a rank counts.
func spoken(rank int) (all []uint64) {
	rng := rand.New(rand.NewPCG(1, uint64(rank)))
	for range each {
		all = append(all, rng.Uint64N(words))
	}
	return all
}

func bucket(w *conduit.Worker, word uint64) conduit.Ptr[uint64] {
	return buckets.Of(w.Job()).At(int(word * 0x9e3779b97f4a7c15 >> 32 % uint64(buckets.Len())))
}

// find looks for a word in its chain, of which it returns the first entry too. Entries are only
// added, in front of the others. The bucket, which others change, is read by an atomic: with a
// cache for remote data it acquires what they did before. Hence it leaves out the count as well.
func find(w *conduit.Worker, word uint64) (first uint64, p conduit.Ptr[entry], err error) {
	var e [2]uint64
	first, err = conduit.FetchAdd(w, bucket(w, word), 0)
	for chain := first; chain != 0 && err == nil; chain = e[1] {
		p = follow(chain)
		if e, err = conduit.Get(w, conduit.Cast[[2]uint64](p)); e[0] == word {
			return first, p, err
		}
	}
	return first, conduit.Ptr[entry]{}, err
}

// count adds 1 to the count of a word, in a new entry if it has none.
func count(ctx context.Context, w *conduit.Worker, word uint64) error {
	var mine conduit.Ptr[entry]
	for {
		first, p, err := find(w, word)
		if err == nil && !p.IsNull() { // another rank may have been quicker to make it
			_, err = conduit.FetchAdd(w, conduit.Cast[uint64](p).Add(2), 1)
			return errors.Join(err, conduit.Free(ctx, w.Job(), mine))
		}
		if err == nil && mine.IsNull() {
			mine, err = conduit.Alloc[entry](ctx, w.Job(), 1)
		}
		if err == nil {
			err = conduit.Put(w, mine, entry{word, first, 1})
		}
		if err != nil {
			return err
		}
		if old, err := conduit.CompareSwap(w, bucket(w, word), first, link(mine)); err != nil || old == first {
			inserted.Add(1)
			return err
		}
	}
}

// check compares the table with the counts of the ranks.
func check(ctx context.Context, w *conduit.Worker) error {
	want, entries := make(map[uint64]uint64), uint64(0)
	for r := range w.Job().Size() {
		for _, word := range spoken(r) {
			want[word]++
		}
		reply, err := ask.Call(ctx, w, r)
		if err != nil {
			return err
		}
		entries += reply.Arg(0)
	}
	for word, n := range want {
		_, p, err := find(w, word)
		count, getErr := conduit.Get(w, conduit.Cast[uint64](p).Add(2))
		if err := errors.Join(err, getErr); err != nil || count != n {
			return errors.Join(err, fmt.Errorf("word %d was counted %d times, want %d", word, count, n))
		}
	}
	fmt.Printf("rank %d: %d words in %d entries, %d of them mine\n", w.Job().Rank(), len(want), entries, inserted.Load())
	return nil
}

// clear frees the entries of the buckets that are here, at whatever rank they lie.
func clear(ctx context.Context, w *conduit.Worker) error {
	for _, chain := range buckets.Of(w.Job()).Mine() {
		for l := *chain; l != 0; {
			e, err := conduit.Get(w, follow(l))
			if err = errors.Join(err, conduit.Free(ctx, w.Job(), follow(l))); err != nil {
				return err
			}
			l = e[1]
		}
	}
	return nil
}
