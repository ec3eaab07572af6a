package shm

import (
	"encoding/hex"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// here finds out where this process runs. A value that cannot be read, as in a container whose
// /proc has processes only, stays 0, which is unknown: then Reach finds out by a connection.
func here() (p place, err error) {
	text, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if b, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(string(text)), "-", "")); err == nil &&
		len(b) == len(p.boot) {
		p.boot = id(b)
	}
	var st unix.Stat_t
	if unix.Stat("/proc/thread-self/ns/net", &st) == nil {
		p.nsDev, p.nsInode = st.Dev, st.Ino
	}
	p.uid = uint32(os.Geteuid())
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
