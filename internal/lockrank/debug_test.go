//go:build debug

package lockrank

import (
	"strings"
	"testing"
)

// violation runs f, which must break the rule, and returns the text.
func violation(t *testing.T, rule Rule, f func()) (text string) {
	t.Helper()
	defer func() {
		t.Helper()
		v, ok := recover().(*Violation)
		if !ok || v.Rule != rule {
			t.Fatalf("got %v, want a violation of %q", v, rule)
		}
		text = v.Error()
	}()
	f()
	return ""
}

func mention(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%q does not mention %q", text, w)
		}
	}
}

func lockHere(m *Mutex) { m.Lock() }

func TestInversionNamesBothLocksAndThePlace(t *testing.T) {
	endpoint, pool := newMutex(Endpoint, 7), newMutex(Pool, 0)
	lockHere(pool)
	defer pool.Unlock()
	text := violation(t, Inversion, endpoint.Lock)
	mention(t, text, "endpoint[7]", "pool held", "lockrank/debug_test.go", "lockHere")
}

func TestEveryPairOfClassesHasOneOrder(t *testing.T) {
	for low := HeapGlobal; low < endOfClasses; low++ {
		for high := low; high < endOfClasses; high++ {
			a, b := newMutex(low, 1), newMutex(high, 2)
			a.Lock()
			b.Lock()
			a.Unlock()
			text := violation(t, Inversion, a.Lock)
			mention(t, text, a.String(), b.String())
			b.Unlock()
		}
	}
}

func TestAnInversionBehindALockInOrderIsFound(t *testing.T) {
	limit, endpoint, pool := newMutex(Limit, 0), newMutex(Endpoint, 1), newMutex(Pool, 0)
	pool.Lock()
	if !limit.TryLock() { // against the order, which TryLock may
		t.Fatal("refused")
	}
	mention(t, violation(t, Inversion, endpoint.Lock), "pool held") // although limit was taken last
	limit.Unlock()
	pool.Unlock()
}

func TestASecondLockOfTheSameMutexPanics(t *testing.T) {
	m := newMutex(Limit, 0)
	m.Lock()
	defer m.Unlock()
	mention(t, violation(t, Inversion, m.Lock), "limit")
}

func TestAnInversionDoesNotKeepOthersOut(t *testing.T) {
	endpoint, pool := newMutex(Endpoint, 1), newMutex(Pool, 0)
	pool.Lock()
	violation(t, Inversion, endpoint.Lock)
	pool.Unlock()
	if !endpoint.TryLock() {
		t.Fatal("it was left locked")
	}
	endpoint.Unlock()
}

func TestUnlockByAnotherNamesTheHolder(t *testing.T) {
	m := newMutex(Endpoint, 2)
	lockHere(m)
	defer m.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		mention(t, violation(t, NotHeld, m.Unlock), "endpoint[2]", "lockHere")
	}()
	<-done
}

func TestUnlockOfAFreeLockPanics(t *testing.T) {
	mention(t, violation(t, NotHeld, newMutex(Pool, 0).Unlock), "pool", "free")
}

func TestWaitingWithALockHeldPanics(t *testing.T) {
	m := newMutex(Pool, 0)
	m.Lock()
	mention(t, violation(t, HeldInWait, func() { MustHoldNone("Wait") }), "Wait", "pool held", "debug_test.go")
	m.Unlock()
	MustHoldNone("Wait")
}

func TestCommunicationFromAHandlerPanics(t *testing.T) {
	EnterHandler("sum")
	mention(t, violation(t, InHandler, func() { CheckCommunication("Request") }), "Request", `"sum"`)
	done := make(chan struct{})
	go func() { // another goroutine is in no handler
		defer close(done)
		CheckCommunication("Request")
	}()
	<-done
	LeaveHandler()
	CheckCommunication("Request")
	violation(t, NotInHandler, LeaveHandler)
}

func TestAHandlerThatLeavesALockPanics(t *testing.T) {
	before, inside := newMutex(Limit, 0), newMutex(Pool, 0)
	before.Lock()
	EnterHandler("sum")
	inside.Lock()
	mention(t, violation(t, HeldByHandler, LeaveHandler), `"sum"`, "pool held")
	inside.Unlock()
	EnterHandler("sum")
	LeaveHandler() // what was held before is not the handler's
	before.Unlock()
}

func TestALockWithoutARankPanics(t *testing.T) {
	violation(t, NotInitialised, new(Mutex).Lock)
	violation(t, NotInitialised, func() { new(Mutex).Init(endOfClasses, 0) })
}

func TestGoroutinesThatHoldNothingLeaveNoRecord(t *testing.T) {
	m := newMutex(Pool, 0)
	for range 50 {
		done := make(chan struct{})
		go func() {
			defer close(done)
			m.Lock()
			m.TryLock()
			m.Unlock()
			EnterHandler("x")
			LeaveHandler()
			MustHoldNone("Wait")
			CheckCommunication("Send")
		}()
		<-done
	}
	n := 0
	goroutines.Range(func(any, any) bool { n++; return true })
	if n != 0 {
		t.Errorf("%d records are left", n)
	}
}
