package fabric

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Messenger is the two-sided half of a network: endpoints that exchange messages.
// Package am is written against it.
type Messenger interface {
	Network

	// NewEndpoint opens endpoint i of this rank, which exchanges messages with endpoint i of
	// every peer. It connects to no peer: a connection is made when the first message
	// goes to one. NewEndpoint may be called before a peer has opened its own;
	// messages wait for it.
	NewEndpoint(i int, cfg EndpointConfig) (Endpoint, error)

	// MessageLimits are fixed from construction on.
	MessageLimits() MessageLimits
}

// MessageLimits are what a network's endpoints can do.
type MessageLimits struct {
	MaxMessage int // largest SlotSize in bytes
	MaxNote    int // largest note in bytes, at least 64
	MaxSlots   int // receive buffers of one endpoint
	Endpoints  int // of one rank; 0 means no limit
}

// EndpointConfig sizes an endpoint. Both ends of a pair must agree on SlotSize.
type EndpointConfig struct {
	Slots    int // receive buffers, all posted when NewEndpoint returns
	SlotSize int // bytes of one, and the largest message
	Sends    int // send buffers of SlotSize
	// Reserved of the send buffers are given out by Reserve only with Urgent, for
	// replies; of all others together at most the rest are out. Less than Sends.
	Reserved int
}

// SendBuf is a send buffer in the caller's hands: Data is memory that the
// device reads, SlotSize bytes. It goes back with Send or Release.
type SendBuf struct {
	Data []byte
	ID   int32
}

// Copied is the ID of a SendBuf that is no send buffer: its Data are any memory of the caller,
// which Send has copied when it returns, and which takes no Write and no cookie. A message that
// cannot go at once takes a send buffer, as Reserve with the same flags would: then Send may fail
// with ErrNoBuffer.
const Copied int32 = -1

// CheckCopied checks Send's arguments for a Copied.
func CheckCopied(peer int, b SendBuf, n int, w *Write, cookie uint64) error {
	if n < 0 || n > len(b.Data) {
		return &BoundsError{Op: "send", Rank: peer, Len: uint64(n), Size: uint64(len(b.Data))}
	}
	if w != nil || cookie != 0 {
		return errors.New("fabric: send: a message that is copied takes neither a write nor a cookie")
	}
	return nil
}

// SendFlag modifies Reserve and Send.
type SendFlag uint8

const (
	// Urgent may use the reserved send buffers: with Reserve, and with Send of Copied data.
	Urgent SendFlag = 1 << iota
	// More announces another Send at once: the message may wait for it,
	// or for Kick, before it is posted.
	More
	// Solicited wakes a receiver that sleeps in Wait. Without it a message may
	// stay unnoticed until the next poll there.
	Solicited
)

// ErrAgain is wrapped when an endpoint cannot take something now: poll, or wait, then try again.
var ErrAgain = errors.New("fabric: try again after polling")

// ErrNoBuffer is wrapped when no send buffer is free. It is an ErrAgain.
var ErrNoBuffer = fmt.Errorf("no send buffer is free: %w", ErrAgain)

// Write is a one-sided write that goes before a message to the same peer: its
// bytes are in the peer's segment when the message is delivered.
type Write struct {
	Off uint64 // in the peer's segment
	Src []byte // must stay unchanged until the event Sent with the message's cookie
}

// EventKind is what an Event is about.
type EventKind uint8

const (
	// Arrived: a message from Peer lies in Slot. Its Data stay the caller's until
	// Post gives the slot back.
	Arrived EventKind = iota + 1
	// NoteArrived: an unreliable note; Data are valid until the next Poll.
	NoteArrived
	// Sent: the message with Cookie (non-zero) is complete at the peer's side, or
	// Err is why it never will be. Each such message has exactly one.
	Sent
	// Up: a connection to Peer is made; Epoch counts its connections from 1. It comes
	// before the first message of the connection.
	Up
	// Idle: the connection to Peer was closed because too many are open, by either
	// end. Nothing was in flight. The next message opens another, with the next Epoch.
	Idle
	// Down: Peer is dead, Err is how that was found out. It is the last event of Peer, and
	// comes once, whether there was ever a connection or not.
	Down
)

// Event is one thing that happened at an endpoint.
type Event struct {
	Kind   EventKind
	Peer   int
	Slot   int32  // of Arrived
	Epoch  uint32 // of Arrived, Up, Idle: the connection's number, from 1, equal at both ends
	Cookie uint64 // of Sent
	Data   []byte // of Arrived, NoteArrived
	Err    error  // of Sent, Down
}

// Endpoint exchanges messages with the endpoints of the same number at the peers.
//
// Messages between two ranks arrive in the order in which they were sent,
// exactly once, within one connection; a connection closes only when nothing is
// in flight on it. A message consumes one receive slot of the peer. The sender makes sure
// that one is posted (package flow): a network never buffers on its own, and
// over verbs a message without a slot is a receiver-not-ready event, which the
// counter RNR shows and which the protocols above never cause.
//
// Notes are datagrams without a slot: lost when the receiver has no room, at times
// duplicated or reordered. They need no connection.
//
// Poll and Wait belong to one goroutine at a time. All other methods may be
// called from any goroutine, also while another polls.
type Endpoint interface {
	// Reserve takes a send buffer, or returns an error that wraps ErrNoBuffer.
	Reserve(f SendFlag) (SendBuf, error)
	// Release gives a buffer back unused.
	Release(b SendBuf)

	// Send sends the first n bytes of b to a peer, behind w if it is not nil, and
	// takes the buffer, if b is one and not Copied. Polling gives it back, also of a message
	// without an event and without a successor. A cookie other than 0 requests a Sent event. To a peer
	// that is not connected the message waits for the connection, which Send
	// starts. ErrAgain: the queue to this peer is full, the buffer stays the
	// caller's. *PeerDownError, *RankError, *BoundsError: likewise.
	Send(peer int, b SendBuf, n int, w *Write, cookie uint64, f SendFlag) error
	// Kick posts work requests that More held back, and has the network confirm what is Unconfirmed.
	Kick() error

	// Note sends an unreliable datagram of at most MaxNote bytes. The bytes are
	// copied. It may vanish.
	Note(peer int, data []byte) error

	// Poll makes progress, for at most about budget when nothing happens, and fills
	// events; it returns as soon as there is one. Over verbs it is mostly one call into C. What
	// had come before a Poll that returns none, the next one returns, unless it lies behind a
	// message that is still being written.
	Poll(events []Event, budget time.Duration) (int, error)
	// Post gives receive slots back to the device.
	Post(slots ...int32) error

	// Wait sleeps until Poll may find something, Wake was called, or ctx is done:
	// then it returns its cause. What happened between the last Poll and Wait ends
	// it at once. After ErrAgain it ends when there is room again. It may end without a reason.
	Wait(ctx context.Context) error
	// Wake ends a Wait, now or the next one. It does not block and may be called
	// from anywhere.
	Wake()

	// Now is the network's time since an arbitrary origin: the clock of every
	// time-out of the protocols above. In a simulation it is virtual.
	Now() time.Duration
	// After has Wait end no later than at t on this clock, once. Several times may be set, in any
	// order: each of them counts.
	After(t time.Duration)

	// Connected returns to how many peers connections are open.
	Connected() int
	// Disconnect closes the connection to an idle peer, if nothing is in flight on
	// it: an event Idle at both ends. It only starts that.
	Disconnect(peer int) error

	// Stats are the endpoint's counters, at any time.
	Stats() EndpointStats

	// Close ends the endpoint. Messages in flight may or may not arrive, without an event.
	Close() error
}

// EndpointStats count from NewEndpoint on.
type EndpointStats struct {
	Sends        uint64 `metric:"port_messages_total{direction=sent} Messages carried, replies and pings included."`
	SendBytes    uint64 `metric:"port_bytes_total{direction=sent} Their bytes, headers included."`
	Arrivals     uint64 `metric:"port_messages_total{direction=arrived}"`
	ArrivalBytes uint64 `metric:"port_bytes_total{direction=arrived}"`
	Notes        uint64 `metric:"port_notes_total{direction=sent} Unreliable datagrams, those dropped on arrival apart."`
	NotesArrived uint64 `metric:"port_notes_total{direction=arrived}"`
	NotesDropped uint64 `metric:"port_notes_total{direction=dropped}"` // by this end: malformed, or no room
	Writes       uint64 `metric:"port_writes_total Writes that went in front of messages."`
	WriteBytes   uint64 `metric:"port_write_bytes_total Their bytes."`
	Doorbells    uint64 `metric:"port_doorbells_total Calls that posted messages, or woke their receivers."`
	Polls        uint64 `metric:"port_polls_total Times that the network looked for events."`
	Connects     uint64 `metric:"port_connections_total{by=this_rank} Connections opened, by their initiator."`
	Accepts      uint64 `metric:"port_connections_total{by=peer}"`
	Handshakes   uint64 `metric:"port_handshakes_total Datagrams of connection making, repetitions included."`
	Disconnects  uint64 `metric:"port_disconnects_total Connections closed because they were idle."`
	RNR          uint64 `metric:"port_rnr_total Messages that met no receive buffer, over verbs of the port: must be 0."`
	Posted       int    `metric:"port_slots_posted Receive buffers that are posted."`
	FreeSends    int    `metric:"port_sends_free Send buffers that are free, the reserved ones included."`

	// Unconfirmed are messages without Urgent; Kick and polling bring it to 0.
	Unconfirmed int `metric:"port_unconfirmed Messages without a send buffer any more that may not have arrived."`
}
