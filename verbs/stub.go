//go:build !linux || !cgo

package verbs

import "syscall"

// This build has no cgo, or is not for Linux: what needs libibverbs says so.

// Library returns ErrNotSupported.
func Library() (string, error) { return "", notBuilt("load libibverbs", "") }

// Devices returns ErrNotSupported.
func Devices() ([]DeviceInfo, error) { return nil, notBuilt("list devices", "") }

// Context is an open device; this build has none.
type Context struct{}

// Open returns ErrNotSupported.
func Open(name string) (*Context, error) { return nil, notBuilt("open", name) }

// Close does nothing.
func (x *Context) Close() error { return nil }

// GetForkStatus says that there is nothing to protect.
func GetForkStatus() ForkStatus { return ForkUnneeded }

func notBuilt(op, device string) error {
	return &Error{Op: op, Device: device, Errno: syscall.ENOSYS, Err: ErrNotSupported,
		Detail: "this program was built without cgo, or not for Linux",
		Remedy: "build on Linux with CGO_ENABLED=1 and a C compiler; ranks of one host need no RDMA and use shared memory"}
}
