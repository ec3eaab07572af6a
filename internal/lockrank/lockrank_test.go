package lockrank

import (
	"sync"
	"testing"

	"github.com/ibconduit/conduit/internal/handle/handletest"
)

func TestMain(m *testing.M) { handletest.VerifyTestMain(m) }

func newMutex(c Class, instance int) *Mutex {
	m := new(Mutex)
	m.Init(c, instance)
	return m
}

// free reports whether another goroutine can lock all of these.
func free(locks ...*Mutex) bool {
	done := make(chan bool)
	go func() {
		ok := true
		for _, m := range locks {
			if ok = ok && m.TryLock(); ok {
				defer m.Unlock()
			}
		}
		done <- ok
	}()
	return <-done
}

// These hold in every build.

func TestLocksExcludeOneAnother(t *testing.T) {
	endpoint, pool := newMutex(Endpoint, 3), newMutex(Pool, 0)
	const goroutines, each = 8, 500
	var wg sync.WaitGroup
	counts := [2]int{}
	for range goroutines {
		wg.Go(func() {
			for range each {
				endpoint.Lock()
				counts[0]++
				pool.Lock() // nested: the big lock must not wait for itself
				counts[1]++
				pool.Unlock()
				counts[0]++
				endpoint.Unlock()
			}
		})
	}
	wg.Wait()
	if counts != [2]int{2 * goroutines * each, goroutines * each} {
		t.Errorf("counts are %v: updates were lost", counts)
	}
}

func TestLocksAreFreeAfterUnlockingInAnyOrder(t *testing.T) {
	a, b, c := newMutex(HeapLocal, 1), newMutex(HeapLocal, 2), newMutex(Limit, 0)
	a.Lock()
	b.Lock()
	c.Lock()
	a.Unlock()
	c.Unlock()
	b.Unlock()
	if !free(a, b, c) {
		t.Error("another goroutine did not get the locks")
	}
}

func TestTryLockFailsWhileTheLockIsHeld(t *testing.T) {
	m := newMutex(Pool, 0)
	if !m.TryLock() {
		t.Fatal("a free lock was refused")
	}
	if m.TryLock() {
		t.Error("the holder got it again")
	}
	if free(m) {
		t.Error("another goroutine got it")
	}
	m.Unlock()
	if !free(m) {
		t.Error("not free after Unlock")
	}
}

func TestTryLockMayGoAgainstTheOrder(t *testing.T) {
	low, high := newMutex(Limit, 0), newMutex(Pool, 0)
	high.Lock()
	if !low.TryLock() {
		t.Fatal("refused")
	}
	low.Unlock()
	high.Unlock()
}

func TestLocksInOrderAndHandlersThatLockAreFine(t *testing.T) {
	locks := []*Mutex{
		newMutex(HeapGlobal, 0), newMutex(HeapLocal, 0), newMutex(HeapLocal, 9), newMutex(Limit, 0),
		newMutex(Endpoint, 4), newMutex(Endpoint, 5), newMutex(Pool, 0), newMutex(Errors, 0),
	}
	EnterHandler("lookup")
	for _, l := range locks {
		l.Lock()
	}
	for _, l := range locks {
		l.Unlock()
	}
	LeaveHandler()
	MustHoldNone("Wait")
	CheckCommunication("Send")
}

func BenchmarkLock(b *testing.B) {
	n := 0
	b.Run("sync", func(b *testing.B) {
		var m sync.Mutex
		for b.Loop() {
			m.Lock()
			n++
			m.Unlock()
		}
	})
	b.Run("ranked", func(b *testing.B) {
		m := newMutex(Pool, 0)
		for b.Loop() {
			m.Lock()
			n++
			m.Unlock()
		}
	})
	b.Run("ranked/nested", func(b *testing.B) {
		endpoint, pool := newMutex(Endpoint, 1), newMutex(Pool, 0)
		for b.Loop() {
			endpoint.Lock()
			pool.Lock()
			n++
			pool.Unlock()
			endpoint.Unlock()
		}
	})
}

// What fine locks are worth: two goroutines, a lock each.
func BenchmarkLocksApart(b *testing.B) {
	var mu sync.Mutex
	next := 0
	b.RunParallel(func(pb *testing.PB) {
		mu.Lock()
		next++
		m := newMutex(Endpoint, next)
		mu.Unlock()
		work := 0
		for pb.Next() {
			m.Lock()
			for i := range 100 {
				work += i
			}
			m.Unlock()
		}
		_ = work
	})
}
