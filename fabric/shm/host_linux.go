package shm

import (
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// here finds out where this process runs.
func here() (place, error) {
	var p place
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return p, fmt.Errorf("shm: boot id: %w", err)
	}
	b, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(string(text)), "-", ""))
	if err != nil || len(b) != len(p.boot) {
		return p, fmt.Errorf("shm: boot id %q is not a UUID", text)
	}
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return p, fmt.Errorf("shm: network namespace: %w", err)
	}
	p.boot, p.nsDev, p.nsInode, p.uid = id(b), st.Dev, st.Ino, uint32(os.Geteuid())
	return p, nil
}

// peerUser is the user that the process at the other end had when it connected
// or listened (unix(7), SO_PEERCRED).
func peerUser(c *net.UnixConn) (uint32, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var inner error
	if err := raw.Control(func(fd uintptr) {
		cred, inner = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if inner != nil {
		return 0, inner
	}
	return cred.Uid, nil
}

// yieldCore is sched_yield(2).
func yieldCore() { unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
