package verbs

import (
	"fmt"
	"syscall"
	"unsafe"
)

// WC is a completion, in the layout of struct ibv_wc, so that the device's library writes into Go's
// slice directly.
//
// When Status is not StatusSuccess only WRID, Status, QPNum and VendorErr are valid (man
// ibv_poll_cq); Opcode in particular is not.
type WC struct {
	WRID         uint64
	Status       WCStatus
	Opcode       WCOpcode
	VendorErr    uint32
	ByteLen      uint32 // of receives, READs and atomics
	_            uint32 // immediate data, or an invalidated rkey
	QPNum        uint32 // the local QP
	SrcQP        uint32 // the sender's QP; UD only
	Flags        WCFlags
	PKeyIndex    uint16
	SLID         uint16 // UD on InfiniBand only
	SL           uint8  // UD on InfiniBand only
	DLIDPathBits uint8
	_            [2]byte
}

// WCFlags says which optional fields of a completion are valid.
type WCFlags uint32

const (
	// UD: the first 40 bytes of the buffer hold the GRH (on InfiniBand; RoCE always reserves them)
	WCWithGRH WCFlags = 1 << 0
)

// Err returns nil for a success, else a *WCError.
func (w *WC) Err() error {
	if w.Status == StatusSuccess {
		return nil
	}
	return &WCError{WRID: w.WRID, Status: w.Status, VendorErr: w.VendorErr, QPNum: w.QPNum}
}

// WCOpcode says what completed. Receives have bit 7 set.
type WCOpcode uint32

const (
	WCSend        WCOpcode = 0
	WCWrite       WCOpcode = 1
	WCRead        WCOpcode = 2
	WCCompareSwap WCOpcode = 3
	WCFetchAdd    WCOpcode = 4
	WCRecv        WCOpcode = 1 << 7
)

func (o WCOpcode) String() string {
	return enumString("completion opcode", map[int]string{0: "SEND", 1: "WRITE", 2: "READ", 3: "CMP_SWAP", 4: "FETCH_ADD",
		5: "BIND_MW", 6: "LOCAL_INV", 128: "RECV", 129: "RECV_WRITE_WITH_IMM"}, int(o))
}

// WCStatus is the outcome of a work request (IBTA 1.4 vol. 1 §10.10.3, §11.6.2). It is an error
// value, so errors.Is(err, verbs.StatusRemoteAccess) works. Statuses of reliable datagrams and of
// tag matching, which this package does not offer, have no name.
type WCStatus uint32

const (
	StatusSuccess          WCStatus = 0
	StatusLocalLength      WCStatus = 1
	StatusLocalQPOp        WCStatus = 2
	StatusLocalProtection  WCStatus = 4
	StatusFlushed          WCStatus = 5
	StatusMWBind           WCStatus = 6
	StatusBadResponse      WCStatus = 7
	StatusLocalAccess      WCStatus = 8
	StatusRemoteInvalidReq WCStatus = 9
	StatusRemoteAccess     WCStatus = 10
	StatusRemoteOp         WCStatus = 11
	StatusRetryExceeded    WCStatus = 12
	StatusRNRRetryExceeded WCStatus = 13
	StatusRemoteAborted    WCStatus = 16
	StatusFatal            WCStatus = 19
	StatusResponseTimeout  WCStatus = 20
	StatusGeneral          WCStatus = 21
)

var statusText = [...]string{
	StatusSuccess: "success",
	StatusLocalLength: "local length error: a message did not fit the posted buffer, " +
		"or is longer than the port allows",
	StatusLocalQPOp:       "local QP operation error: the device could not execute the request",
	StatusLocalProtection: "local protection error: a scatter entry is not covered by the region of its lkey",
	StatusFlushed:         "flushed: the QP had already failed or was put into the error state",
	StatusMWBind:          "memory window bind error: wrong access rights or keys",
	StatusBadResponse:     "bad response from the remote side",
	StatusLocalAccess:     "local access error: a WRITE_WITH_IMM hit a local buffer that forbids it",
	StatusRemoteInvalidReq: "remote invalid request: the remote QP does not support the operation, " +
		"its receive buffer is too small, or the length exceeds the maximum",
	StatusRemoteAccess: "remote access error: wrong rkey, address outside of the region, " +
		"or access not granted by region or QP",
	StatusRemoteOp: "remote operation error: the remote side could not execute the request",
	StatusRetryExceeded: "transport retries exceeded: the remote QP does not answer (process or port dead, " +
		"wrong QP number or GID, path MTU too big for the way)",
	StatusRNRRetryExceeded: "receiver-not-ready retries exceeded: the remote side posted no receive",
	StatusRemoteAborted:    "remote aborted",
	StatusFatal:            "fatal device error",
	StatusResponseTimeout:  "response timeout",
	StatusGeneral:          "general error",
}

func (s WCStatus) Error() string {
	if int(s) < len(statusText) && statusText[s] != "" {
		return statusText[s]
	}
	return fmt.Sprintf("completion status %d", uint32(s))
}

// Errno is the nearest errno of a status, for callers that speak only errno.
func (s WCStatus) Errno() syscall.Errno {
	switch s {
	case StatusSuccess:
		return 0
	case StatusLocalLength:
		return syscall.EMSGSIZE
	case StatusLocalProtection, StatusLocalAccess, StatusRemoteAccess, StatusMWBind:
		return syscall.EACCES
	case StatusFlushed, StatusRemoteAborted:
		return syscall.ECANCELED
	case StatusRetryExceeded, StatusResponseTimeout:
		return syscall.ETIMEDOUT
	case StatusRNRRetryExceeded:
		return syscall.ENOBUFS
	case StatusRemoteInvalidReq:
		return syscall.EINVAL
	}
	return syscall.EIO
}

// WCError is a completion that reports a failure. The opcode of the request is the poster's
// knowledge: the device does not report it for a failure.
type WCError struct {
	WRID      uint64
	Status    WCStatus
	VendorErr uint32
	QPNum     uint32
}

func (e *WCError) Error() string {
	return fmt.Sprintf("verbs: work request %#x on QP %#x: %s (vendor error %#x)",
		e.WRID, e.QPNum, e.Status.Error(), e.VendorErr)
}

// Unwrap lets errors.Is find the status and its errno.
func (e *WCError) Unwrap() []error { return []error{e.Status, e.Status.Errno()} }

const sizeofWC = unsafe.Sizeof(WC{})
