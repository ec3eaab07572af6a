package sim

import (
	"fmt"
	"strconv"
)

// mark is the kind of a line in the trace.
type mark uint8

const (
	markStart mark = iota
	markEnd
	markWake
	markSend
	markDeliver
	markRNR
	markSent
	markNote
	markNoteLost
	markNoteArrived
	markNoteDropped
	markHandshake
	markUp
	markClosing
	markRefused
	markIdle
	markDown
	markStall
	markPut
	markGet
	markAtomic
	markApply
	markComplete
	markFault
	markExpire
)

var markNames = [...]string{
	markStart: "start", markEnd: "end", markWake: "wake", markSend: "send", markDeliver: "deliver", markRNR: "rnr",
	markSent: "sent", markNote: "note", markNoteLost: "note-lost", markNoteArrived: "note-arrived",
	markNoteDropped: "note-dropped",
	markHandshake:   "handshake", markUp: "up", markClosing: "closing", markRefused: "refused",
	markIdle: "idle", markDown: "down",
	markStall: "stall", markPut: "put", markGet: "get", markAtomic: "atomic", markApply: "apply", markComplete: "complete",
	markFault: "fault", markExpire: "expire",
}

// emit adds an event to the hash, and to the trace if there is one:
//
//	<virtual ns> <kind> <rank> <peer> <x> <y>
//
// x and y depend on the kind: an endpoint or an offset, a length or a number.
func (w *World) emit(m mark, rank, peer int32, x, y uint64) {
	h := w.hash ^ uint64(m)<<56 ^ uint64(w.now)
	h = (h ^ h>>29) * 0x9e3779b97f4a7c15
	h ^= uint64(uint32(rank))<<32 | uint64(uint32(peer))
	h = (h ^ h>>32) * 0xbf58476d1ce4e5b9
	h ^= x + y*0x94d049bb133111eb
	w.hash = (h ^ h>>29) * 0x94d049bb133111eb
	if w.cfg.Trace == nil {
		return
	}
	b := strconv.AppendInt(w.text[:0], w.now, 10)
	b = append(append(b, ' '), markNames[m]...)
	for _, v := range [...]int64{int64(rank), int64(peer), int64(x), int64(y)} {
		b = strconv.AppendInt(append(b, ' '), v, 10)
	}
	w.text = append(b, '\n')
	if _, err := w.cfg.Trace.Write(w.text); err != nil && w.fatal == nil {
		w.fatal = fmt.Errorf("sim: %w", err)
	}
}

// TraceHash is a hash of everything that happened so far. It is the same for every run
// of a program with one seed.
func (w *World) TraceHash() uint64 { return w.hash }
