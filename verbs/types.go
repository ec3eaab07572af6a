package verbs

import (
	"fmt"
	"strings"
)

// The numbers below are the ABI of libibverbs (infiniband/verbs.h) and of the kernel
// (include/uapi/rdma/ib_user_verbs.h); a test compares them with the header (abi_test.go).

// enumString names v, or prints it as a number.
func enumString(kind string, names map[int]string, v int) string {
	if s, ok := names[v]; ok {
		return s
	}
	return fmt.Sprintf("%s(%d)", kind, v)
}

// flagString names the bits of v, lowest first.
func flagString(names []string, v uint64) string {
	if v == 0 {
		return "0"
	}
	var out []string
	for i := 0; i < 64; i++ {
		switch {
		case v&(1<<i) == 0:
		case i < len(names) && names[i] != "":
			out = append(out, names[i])
		default:
			out = append(out, fmt.Sprintf("%#x", uint64(1)<<i))
		}
	}
	return strings.Join(out, "|")
}

// LinkLayer says what a port's wire is.
type LinkLayer uint8

const (
	LinkInfiniBand LinkLayer = 1
	LinkEthernet   LinkLayer = 2
)

func (l LinkLayer) String() string {
	return enumString("link layer", map[int]string{0: "unspecified", 1: "InfiniBand", 2: "Ethernet"}, int(l))
}

// PortState is the logical state of a port. Only an active port carries traffic.
type PortState int

const (
	PortDown   PortState = 1
	PortInit   PortState = 2
	PortArmed  PortState = 3
	PortActive PortState = 4
)

func (s PortState) String() string {
	return enumString("port state",
		map[int]string{0: "no state", 1: "down", 2: "init", 3: "armed", 4: "active", 5: "active-defer"}, int(s))
}

// MTU is a path MTU in the coding of the IBTA: 1 is 256 bytes, 5 is 4096.
type MTU uint8

const (
	MTU256  MTU = 1
	MTU512  MTU = 2
	MTU1024 MTU = 3
	MTU2048 MTU = 4
	MTU4096 MTU = 5
)

// Bytes returns the payload per packet, or 0 when m is not a valid code.
func (m MTU) Bytes() int {
	if m < MTU256 || m > MTU4096 {
		return 0
	}
	return 128 << m
}

func (m MTU) String() string {
	if m.Bytes() == 0 {
		return fmt.Sprintf("MTU(%d)", uint8(m))
	}
	return fmt.Sprint(m.Bytes())
}

// AtomicCap says between which parties the device's atomics are atomic.
type AtomicCap int

const (
	AtomicNone AtomicCap = 0 // no atomics
	AtomicHCA  AtomicCap = 1 // among operations of this device only: not with the CPU
	AtomicGlob AtomicCap = 2 // among this device, the CPU and other devices
)

func (a AtomicCap) String() string {
	return enumString("atomic capability", map[int]string{0: "none", 1: "HCA", 2: "global"}, int(a))
}

// Access flags of memory regions and queue pairs.
type Access uint32

const (
	AccessLocalWrite   Access = 1 << 0 // receive, READ and atomic results may be written here
	AccessRemoteWrite  Access = 1 << 1 // needs AccessLocalWrite
	AccessRemoteRead   Access = 1 << 2
	AccessRemoteAtomic Access = 1 << 3 // needs AccessLocalWrite

	// AccessAll is what a segment needs that peers put to, get from and update.
	AccessAll = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic
)

var accessNames = []string{"local-write", "remote-write", "remote-read", "remote-atomic", "mw-bind", "zero-based",
	"on-demand", "huge-tlb", 20: "relaxed-ordering"}

func (a Access) String() string { return flagString(accessNames, uint64(a)) }

// QPType is the transport service of a queue pair.
type QPType int

const (
	RC QPType = 2 // reliable connection
	UD QPType = 4 // unreliable datagram
)

func (t QPType) String() string {
	return enumString("QP type", map[int]string{2: "RC", 4: "UD"}, int(t))
}

// QPState is a state of the QP state machine (IBTA 1.4 vol. 1 §10.3.1).
type QPState int

const (
	StateReset QPState = 0
	StateInit  QPState = 1
	StateRTR   QPState = 2 // ready to receive
	StateRTS   QPState = 3 // ready to send
	StateSQD   QPState = 4 // send queue drained
	StateSQE   QPState = 5 // send queue error
	StateErr   QPState = 6
)

func (s QPState) String() string {
	return enumString("QP state",
		map[int]string{0: "RESET", 1: "INIT", 2: "RTR", 3: "RTS", 4: "SQD", 5: "SQE", 6: "ERR", 7: "unknown"}, int(s))
}

// ForkStatus says whether fork without exec is safe for registered memory.
type ForkStatus int

const (
	// A forked child's writes may take registered pages away from the parent
	ForkDisabled ForkStatus = 0
	ForkEnabled  ForkStatus = 1 // InitFork was called
	ForkUnneeded ForkStatus = 2 // the kernel copies pinned pages at fork (Linux 5.12)
)

func (s ForkStatus) String() string {
	return enumString("fork status", map[int]string{0: "disabled", 1: "enabled", 2: "unneeded"}, int(s))
}
