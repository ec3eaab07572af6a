// Package peek reads the memory of another process of the same user.
package peek

import (
	"fmt"
	"io"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Read copies memory at an address of a process into dst: process_vm_readv(2), which needs the
// right to trace the process (ptrace(2), "Ptrace access mode checking"). It makes no allocation.
func Read(pid int, address uint64, dst []byte) error {
	for done := 0; done < len(dst); {
		// A call copies 2 GiB less a page at most (read(2), "NOTES"), and says how much.
		left := dst[done:]
		local := unix.Iovec{Base: unsafe.SliceData(left)}
		local.SetLen(len(left))
		remote := unix.RemoteIovec{Base: uintptr(address) + uintptr(done), Len: len(left)}
		n, _, errno := unix.Syscall6(unix.SYS_PROCESS_VM_READV, uintptr(pid), uintptr(unsafe.Pointer(&local)), 1,
			uintptr(unsafe.Pointer(&remote)), 1, 0)
		switch {
		case errno != 0:
			return fmt.Errorf("process_vm_readv of %d bytes of process %d, after %d: %w", len(dst), pid, done, errno)
		case n == 0:
			return fmt.Errorf("process_vm_readv of %d bytes of process %d ended after %d: %w", len(dst), pid, done,
				io.ErrUnexpectedEOF)
		}
		done += int(n)
	}
	return nil
}
