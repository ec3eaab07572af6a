package shm

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/ibconduit/conduit/internal/fabric"
)

const (
	addrVersion = 3 // 3: without the segment's length, which is the file's
	addrLen     = 108
	addrSummed  = addrLen - 8
)

// id is 128 random bits: the name of a socket, a cookie.
type id [16]byte

func (a id) equal(b id) bool { return subtle.ConstantTimeCompare(a[:], b[:]) == 1 }

// place is what two ranks must share to reach each other.
type place struct {
	boot           id     // of the kernel
	nsDev, nsInode uint64 // network namespace, to which abstract sockets are local
	uid            uint32
}

// addr is what a rank publishes; doc.go has the wire format.
type addr struct {
	rank   uint32
	pid    uint32
	place  place
	job    id
	name   id
	cookie id
}

func (a *addr) socket() string { return "@ibconduit-" + hex.EncodeToString(a.name[:]) }

func (a *addr) encode() []byte {
	b := make([]byte, 0, addrLen)
	b = append(b, "ibcS"...)
	b = append(b, addrVersion, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, a.rank)
	b = binary.LittleEndian.AppendUint32(b, a.place.uid)
	b = append(b, a.place.boot[:]...)
	b = binary.LittleEndian.AppendUint64(b, a.place.nsDev)
	b = binary.LittleEndian.AppendUint64(b, a.place.nsInode)
	b = append(b, a.job[:]...)
	b = append(b, a.name[:]...)
	b = append(b, a.cookie[:]...)
	b = binary.LittleEndian.AppendUint32(b, a.pid)
	sum := sha256.Sum256(b)
	return append(b, sum[:8]...)
}

// decodeAddr reads an address, which may be anything.
func decodeAddr(b []byte) (addr, error) {
	var a addr
	if len(b) >= 5 && string(b[:4]) == "ibcS" && b[4] != addrVersion {
		return a, fmt.Errorf("version %d, this program has %d: run one build on all ranks", b[4], addrVersion)
	}
	if len(b) != addrLen || string(b[:4]) != "ibcS" {
		return a, fmt.Errorf("malformed address of %d bytes", len(b))
	}
	if sum := sha256.Sum256(b[:addrSummed]); string(sum[:8]) != string(b[addrSummed:]) {
		return a, errors.New("damaged address")
	}
	le := binary.LittleEndian
	a.rank = le.Uint32(b[8:])
	a.place.uid = le.Uint32(b[12:])
	a.place.boot = id(b[16:32])
	a.place.nsDev, a.place.nsInode = le.Uint64(b[32:]), le.Uint64(b[40:])
	a.job = id(b[48:64])
	a.name, a.cookie = id(b[64:80]), id(b[80:96])
	a.pid = le.Uint32(b[96:])
	if [3]byte(b[5:8]) != [3]byte{} {
		return a, errors.New("address with impossible fields")
	}
	return a, nil
}

// peerAddr decodes the address of a rank and checks that it is reachable from here.
func (n *Network) peerAddr(rank int, b []byte) (addr, error) {
	why := func(format string, args ...any) error {
		return fmt.Errorf("shm: rank %d: %w: "+format, append([]any{rank, fabric.ErrUnreachable}, args...)...)
	}
	if rank < 0 || rank >= len(n.targets) {
		return addr{}, &fabric.RankError{Op: "reach", Rank: rank, Size: len(n.targets)}
	}
	if len(b) == 0 {
		return addr{}, why("it published no address")
	}
	a, err := decodeAddr(b)
	if err != nil {
		return a, why("%w", err)
	}
	switch {
	case a.rank != uint32(rank):
		return a, why("the address is of rank %d", a.rank)
	case a.job != n.self.job:
		return a, why("it belongs to another job")
	case a.place.boot != n.self.place.boot && a.place.boot != id{} && n.self.place.boot != id{}:
		return a, why("it runs on another host (boot id)")
	case (a.place.nsDev != n.self.place.nsDev || a.place.nsInode != n.self.place.nsInode) && a.place.nsInode != 0 &&
		n.self.place.nsInode != 0:
		return a, why("it is in another network namespace (start its container with this one's network)")
	case a.place.uid != n.self.place.uid:
		return a, why("it runs as user %d, this rank as %d", a.place.uid, n.self.place.uid)
	}
	return a, nil
}

// Reach is nil if the rank runs on this host, in this network namespace, as this user, in this job
// and with this version of the protocol, and its socket lets this rank in. That is tried, as
// joining would: equal numbers of users may be different users in different user namespaces, and
// the address does not tell apart all containers. The rank is between New and Connect.
func (n *Network) Reach(rank int, b []byte) error {
	a, err := n.peerAddr(rank, b)
	if err != nil || rank == n.cfg.Rank {
		return err
	}
	c, err := new(net.Dialer).Dial("unixpacket", a.socket())
	switch {
	case errors.Is(err, syscall.EAGAIN): // a full backlog (connect(2)): others have found the way
		return nil
	case err != nil:
		return fmt.Errorf("shm: rank %d: %w: no connection to its socket, so that it is on another host or in another "+
			"network namespace, or has ended: %w", rank, fabric.ErrUnreachable, err)
	}
	defer c.Close()
	if err := n.sameUser(c.(*net.UnixConn)); err != nil {
		return fmt.Errorf("shm: rank %d: %w: it is in another user namespace, or runs as another user: %w",
			rank, fabric.ErrUnreachable, err)
	}
	return nil
}
