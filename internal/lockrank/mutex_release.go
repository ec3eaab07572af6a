//go:build !debug

package lockrank

// Checked reports whether the rules are checked.
const Checked = false

// Mutex is a mutual exclusion lock with a rank. Init comes before its first use.
// It must not be copied.
type Mutex struct{ mu core }

// Init gives the lock its rank; a class of one lock has instance 0.
func (m *Mutex) Init(c Class, instance int) {}

// Lock takes the lock.
func (m *Mutex) Lock() { m.mu.Lock() }

// TryLock takes the lock if that needs no waiting, in any order.
func (m *Mutex) TryLock() bool { return m.mu.TryLock() }

// Unlock gives the lock back.
func (m *Mutex) Unlock() { m.mu.Unlock() }

// MustHoldNone: the caller is about to wait or poll.
func MustHoldNone(op string) {}

// EnterHandler: the goroutine runs a message's handler from here on.
func EnterHandler(name string) {}

// LeaveHandler: the handler has returned.
func LeaveHandler() {}

// CheckCommunication: the caller is about to send.
func CheckCommunication(op string) {}
