// Package cache keeps data of other ranks for one worker: copies of what it read, and writes that
// it has not sent yet. Programs that are correct under acquire and release see no difference.
//
//	c, err := cache.New(env, lanes, cache.Config{Region: "data"})
//	err = c.Get(ctx, rank, off, dst)       // a hit reads memory
//	err = c.Put(ctx, rank, off, src)       // kept, and written later
//	err = c.Release(ctx)                   // all that was put is at its targets
//	c.Acquire()                            // what is read from now on is no older than now
//
// A [Cache] belongs to one goroutine at a time, as the lanes that it uses do. It may be handed over
// with its lanes. Ranks exchange nothing to keep caches coherent. It is an env.Fence, and its Lanes
// are lanes.
//
// # Memory model
//
// The unit is the byte. Between two acquires a Get may return any value that the byte had since the
// first of them, or one that this cache put. After Acquire it returns none that was overwritten
// before; what the cache has put itself and not yet written it keeps, and returns. A Put is at its
// target when a Release that began after it has returned nil; it may be there earlier, and puts
// that no Release separates may arrive in any order. Bytes that were not put are never written, so
// that ranks may write different bytes of a page, or of a word, at the same time.
//
// A Release that fails has lost writes: it returns the first error of each rank, once, and the
// bytes are not written any more. When its context ends instead, everything goes on, and Release
// may be called again. Close reports what no Release has.
//
// Operations on the same bytes that pass the cache by are announced with Direct.
//
// A get of a [Lane] that does not wait is a Get at some time between its begin and its end.
//
// # Structure
//
// A page is PageSize bytes of a rank, at a multiple of PageSize from Config.Begin; it has lines of
// LineSize bytes. Pages, and slots in which fetches arrive, are in one registered slab outside of
// the Go heap (slab.go). Page i of the slab belongs to entry i: arrays without pointers, with
// 16-bit indexes for links (entries_datapath.go). A byte can be read if its line is valid and its
// entry's epoch has not been overtaken by an acquire, or if it is dirty, which a bit for each byte
// in one of Config.Dirty masks says.
//
// The network writes into slots only (flights_datapath.go). What arrives is copied into the page,
// but for dirty bytes, and only if nothing has happened meanwhile that makes it old: an acquire, an
// eviction, a write of the page, a Direct. Entries have a generation for that. So a get over partly
// dirty lines is one round trip, and a fetch in flight at an acquire never becomes valid.
//
// The network reads puts from pages. An entry whose bytes are being written keeps its mask until
// they are there, so that its bytes stay readable; a Put to it waits.
//
// Each operation is one group of a batch (fabric.Batch), which its completion ends whatever else is
// in flight: no rank waits for another. Config.Ring bounds them for each rank.
//
// A rank's segment is the same memory from Join to Close, so that a key is rank and page. Memory
// that a program frees and allocates again inside of it is protected as any other data: by the
// release and acquire between the two.
//
// # Counters
//
//	Gets = GetHits + GetMisses + GetsDirect      Puts = PutHits + PutMisses + PutsDirect
//	Prefetched = PrefetchUsed + PrefetchUnused + PrefetchResident, in lines
//	BytesFetched >= BytesUsed
//
// Verify checks them, and the structure.
package cache
