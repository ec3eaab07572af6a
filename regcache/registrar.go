package regcache

import "strings"

// Access says which operations are allowed on a registered range. The bits are as in
// ibv_reg_mr(3), enum ibv_access_flags.
type Access uint32

// The kinds of access that a cache hands out. Reading by this host's own device is always allowed.
const (
	LocalWrite   Access = 1 << 0
	RemoteWrite  Access = 1 << 1 // implies LocalWrite
	RemoteRead   Access = 1 << 2
	RemoteAtomic Access = 1 << 3 // implies LocalWrite

	allAccess = LocalWrite | RemoteWrite | RemoteRead | RemoteAtomic
)

// full adds the access that the device demands: IBTA 1.4 vol. 1 §10.6.3.1.
func (a Access) full() Access {
	if a&(RemoteWrite|RemoteAtomic) != 0 {
		a |= LocalWrite
	}
	return a
}

func (a Access) String() string {
	var names []string
	for i, name := range []string{"local-write", "remote-write", "remote-read", "remote-atomic"} {
		if a&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	if names == nil {
		return "local-read"
	}
	return strings.Join(names, "|")
}

// Registrar makes registrations: a protection domain. It may be called by many goroutines at once.
type Registrar interface {
	// Register pins n bytes at addr. The address is a number, not a pointer: a range that joins
	// several may begin in memory that Go's collector has taken back since, where a Go pointer must
	// not point. Errors that wrap ENOMEM or EAGAIN make the cache evict idle entries and try again.
	// A panic, here or in MR.Close, goes on to the caller of the cache, which stays whole; callers
	// that waited for the registration make their own.
	Register(addr uintptr, n uint64, access Access) (MR, error)
}

// MR is one registration.
type MR interface {
	LKey() uint32
	RKey() uint32
	Close() error // deregisters
}
