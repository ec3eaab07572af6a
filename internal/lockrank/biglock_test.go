//go:build biglock

package lockrank

import (
	"testing"
)

func TestOneLockExcludesHoldersOfDifferentMutexes(t *testing.T) {
	a, b := newMutex(Endpoint, 1), newMutex(Endpoint, 2)
	a.Lock()
	if free(b) {
		t.Error("another goroutine got another lock meanwhile: there are two")
	}
	b.Lock()
	a.Unlock()
	if free(a) {
		t.Error("the lock was given back with the first unlock, not with the last")
	}
	b.Unlock()
	if !free(a) {
		t.Error("the lock was not given back with the last unlock")
	}
}

func TestOneLockShowsASecondLockOfAMutex(t *testing.T) {
	a := newMutex(Endpoint, 1)
	a.Lock()
	defer a.Unlock()
	defer func() {
		if recover() == nil {
			t.Error("no panic: without the tag this would have hung")
		}
	}()
	a.Lock()
}

// Many goroutines start and end while one holds the lock: none is taken for it.
func TestOneLockTellsGoroutinesApart(t *testing.T) {
	a := newMutex(Pool, 0)
	for range 100 {
		a.Lock()
		done := make(chan bool)
		for range 10 {
			go func() { done <- a.TryLock() }()
		}
		for range 10 {
			if <-done {
				t.Fatal("two goroutines hold it")
			}
		}
		a.Unlock()
	}
}
