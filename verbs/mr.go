//go:build linux && cgo

package verbs

import "unsafe"

// RegisterRange is Register for memory that is known by number only: a range that joins several may
// begin in memory that Go's collector has taken back since, where a Go pointer must not point.
// Nothing is kept reachable; the caller keeps the range mapped as with Register.
func (p *PD) RegisterRange(addr uintptr, length uint64, access Access) (*MR, error) {
	return p.register(addr, length, access)
}

// Register pins length bytes at addr. The memory must stay mapped until Close: the device goes on
// reaching the old pages after an munmap.
//
// Memory of the Go heap is not refused, but must be kept reachable and must not be a goroutine's
// stack; it is regcache that knows for how long it may be used.
func (p *PD) Register(addr unsafe.Pointer, length uint64, access Access) (*MR, error) {
	if never {
		escaped = addr
	}
	return p.register(uintptr(addr), length, access)
}

// never is false, which the compiler does not know: what Register is given counts as escaping, and
// is so never on a goroutine's stack, which moves.
var never bool

//lint:ignore U1000 it is written, not read: see never
var escaped unsafe.Pointer
