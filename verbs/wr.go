package verbs

import "unsafe"

// Opcode of a send work request.
type Opcode uint32

const (
	OpWrite       Opcode = 0
	OpWriteImm    Opcode = 1
	OpSend        Opcode = 2
	OpRead        Opcode = 4
	OpCompareSwap Opcode = 5
	OpFetchAdd    Opcode = 6
)

func (o Opcode) String() string {
	return enumString("opcode", map[int]string{0: "WRITE", 1: "WRITE_WITH_IMM", 2: "SEND", 3: "SEND_WITH_IMM", 4: "READ",
		5: "CMP_SWAP", 6: "FETCH_ADD", 7: "LOCAL_INV", 8: "BIND_MW"}, int(o))
}

// SendFlags of a send work request.
type SendFlags uint32

const (
	Signaled  SendFlags = 1 << 1 // make a completion also when it succeeds
	Solicited SendFlags = 1 << 2 // wake a receiver that armed for solicited events
	// Copy the data at the post: the buffer is free again at once, and needs no lkey
	Inline SendFlags = 1 << 3
)

// SGE is one piece of local memory, in the layout of struct ibv_sge.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// SendWR is a send work request, in the layout of struct ibv_send_wr. It lives in the memory of a
// SendChain, which keeps its link and its scatter list. Set what stays once, and what varies before
// each post; every setter is a few plain stores.
type SendWR struct {
	WRID   uint64
	next   uintptr
	sgList uintptr
	numSGE int32
	Opcode Opcode
	Flags  SendFlags
	_      uint32 // immediate data

	// union wr: rdma {addr, rkey}, atomic {addr, compare/add, swap, rkey}, ud {ah, qpn, qkey}
	remote uint64
	w1     uint64
	w2     uint64
	w3     uint64

	_ uint64    // union qp_type
	_ [6]uint64 // union bind_mw, tso
}

// SetNumSGE sets how many of the slot's scatter entries are used.
func (w *SendWR) SetNumSGE(n int) { w.numSGE = int32(n) }

// SetRemote sets the target of WRITE, WRITE_WITH_IMM and READ.
func (w *SendWR) SetRemote(addr uint64, rkey uint32) {
	w.remote = addr
	*(*uint32)(unsafe.Pointer(&w.w1)) = rkey
}

// SetFetchAdd makes the request a FETCH_ADD of the aligned 8-byte word at addr. The old value
// arrives in the slot's scatter entry.
func (w *SendWR) SetFetchAdd(addr uint64, rkey uint32, add uint64) {
	w.Opcode = OpFetchAdd
	w.remote, w.w1, w.w2 = addr, add, 0
	*(*uint32)(unsafe.Pointer(&w.w3)) = rkey
}

// SetCompareSwap makes the request a CMP_SWAP of the aligned 8-byte word at addr. The old value
// arrives in the slot's scatter entry.
func (w *SendWR) SetCompareSwap(addr uint64, rkey uint32, compare, swap uint64) {
	w.Opcode = OpCompareSwap
	w.remote, w.w1, w.w2 = addr, compare, swap
	*(*uint32)(unsafe.Pointer(&w.w3)) = rkey
}

// setUD sets the target of a datagram.
func (w *SendWR) setUD(ah uintptr, qpn, qkey uint32) {
	w.remote = uint64(ah)
	ud := (*[2]uint32)(unsafe.Pointer(&w.w1))
	ud[0], ud[1] = qpn, qkey
}

// RecvWR is a receive work request, in the layout of struct ibv_recv_wr. It lives in the memory of
// a RecvChain.
type RecvWR struct {
	WRID   uint64
	next   uintptr
	sgList uintptr
	numSGE int32
	_      uint32
}
