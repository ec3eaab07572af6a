package am

import (
	"encoding/binary"
	"math"

	"github.com/ibconduit/conduit/internal/credit"
)

// Version is the version of the format of messages, which the package comment describes.
const Version = 2

// MaxArgs is how many arguments a message has at most.
const MaxArgs = 16

const (
	headSize = 48
	offSize  = 8           // of a Long's offset
	argsSize = 8 * MaxArgs // at most
	overhead = headSize + offSize + argsSize
	creditAt = 24
	creditTo = creditAt + credit.ExtendedSize

	creditPlace      = headSize - creditAt // what is behind the header is zero
	_           uint = creditPlace - (credit.HeaderSize + 16)
	_           uint = credit.HeaderSize + 16 - creditPlace

	// connection is the number of the only connection of credits with a peer. It lasts
	// from the first message until the peer's death, across the network's connections.
	connection = 1
)

type kind uint8

const (
	request kind = iota + 1
	reply
	failure // in place of a reply: the reason as argument, the text as payload
	control // a note: credits only
	ping    // takes a credit and says nothing: it finds out whether the peer lives
	// The steps of a large payload, in large.go.
	announce // its length, then the program's arguments
	grant    // the offset in the receiver's segment, then the length
	refusal  // why, as text
	data     // a Long that carries it
	withdraw
	kinds
)

// answers reports whether it ends a call: whether it is a reply or a failure.
func (k kind) answers() bool { return k-reply <= failure-reply }

type category uint8

const (
	short category = iota
	medium
	long
	categories
)

const (
	categoryMask = 3
	wantsBit     = 4
	flagMask     = categoryMask | wantsBit
)

// head is a message without its payload.
type head struct {
	kind    kind
	cat     category
	wants   bool // a request that will be answered
	nargs   uint8
	handler uint16
	token   uint64 // of the call; 0: nobody waits
	length  uint32 // of the payload, wherever it is
	off     uint64 // of a Long's, in the receiver's segment
	credit  credit.Header
	args    [MaxArgs]uint64
}

// size is the encoded length.
func (h *head) size() int { return sizeOf(h.cat, int(h.length), int(h.nargs)) }

func sizeOf(cat category, length, nargs int) int {
	n := headSize + 8*nargs
	switch cat {
	case medium:
		n += length
	case long:
		n += offSize
	}
	return n
}

// encode writes everything but the payload of a Medium, which lies at headSize, to dst,
// which has size bytes.
func (h *head) encode(dst []byte, table uint32, args []uint64) {
	le := binary.LittleEndian
	if h.cat == short && !h.credit.Extended {
		h.encodeShort(dst, table, args)
		return
	}
	flags := byte(h.cat)
	if h.wants {
		flags |= wantsBit
	}
	_ = dst[headSize-1]
	dst[0], dst[1], dst[2], dst[3] = Version, byte(h.kind), flags, h.nargs
	le.PutUint16(dst[4:], h.handler)
	le.PutUint16(dst[6:], 0)
	le.PutUint64(dst[8:], h.token)
	le.PutUint32(dst[16:], h.length)
	le.PutUint32(dst[20:], table)
	n := h.credit.Encode(dst[creditAt:creditTo])
	if n == credit.HeaderSize {
		le.PutUint64(dst[creditAt+credit.HeaderSize:], 0)
		le.PutUint64(dst[headSize-8:], 0)
	} else {
		clear(dst[creditAt+n : headSize])
	}
	at := headSize
	switch h.cat {
	case medium:
		at += int(h.length)
	case long:
		le.PutUint64(dst[at:], h.off)
		at += offSize
	}
	for i, a := range args {
		le.PutUint64(dst[at+8*i:], a)
	}
}

// encodeShort writes a Short by words; most messages are like that.
func (h *head) encodeShort(dst []byte, table uint32, args []uint64) {
	first := uint64(h.handler)<<32 | uint64(h.nargs)<<24 | uint64(h.kind)<<8 | Version
	if h.wants {
		first |= wantsBit << 16
	}
	le := binary.LittleEndian
	_ = dst[headSize-1]
	le.PutUint64(dst, first)
	le.PutUint64(dst[8:], h.token)
	le.PutUint64(dst[16:], uint64(table)<<32|uint64(h.length))
	le.PutUint64(dst[creditAt:], h.credit.Word())
	le.PutUint64(dst[creditAt+credit.HeaderSize:], 0)
	le.PutUint64(dst[headSize-8:], 0)
	for i, a := range args {
		le.PutUint64(dst[headSize+8*i:], a)
	}
}

// decodeShort is decode for most messages: requests and replies that are Shorts. It leaves to
// decode all that is not plainly right.
func (h *head) decodeShort(src []byte, table uint32) bool {
	if len(src) < headSize {
		return false
	}
	credits := binary.LittleEndian.Uint64(src[creditAt:])
	return h.decodePlain(src, table, credits) && h.credit.DecodeWord(credits) && h.credit.Epoch == connection
}

// decodePlain is decodeShort for one with this credit header, which is known and stays as it is.
func (h *head) decodePlain(src []byte, table uint32, credits uint64) bool {
	if len(src) < headSize {
		return false
	}
	const (
		replyFirst = uint64(reply)<<8 | Version
		// of a request: handler, number of arguments, whether it wants a reply
		mayVary = uint64(0xffff)<<32 | 0xff<<24 | wantsBit<<16
	)
	le := binary.LittleEndian
	first, token := le.Uint64(src), le.Uint64(src[8:])
	nargs := first >> 24 & 0xff
	if le.Uint64(src[16:]) != uint64(table)<<32 || le.Uint64(src[creditAt:]) != credits ||
		le.Uint64(src[creditAt+credit.HeaderSize:])|le.Uint64(src[headSize-8:]) != 0 ||
		nargs > MaxArgs || uint64(len(src)) != headSize+8*nargs {
		return false
	}
	wants := first&(wantsBit<<16) != 0
	switch {
	case first&^mayVary == uint64(request)<<8|Version && wants == (token != 0):
		h.kind = request
	case first&^(0xff<<24) == replyFirst && token != 0:
		h.kind = reply
	default:
		return false
	}
	h.cat, h.wants, h.nargs, h.handler, h.token, h.length, h.off = short, wants, uint8(nargs), uint16(first>>32), token,
		0, 0
	for i := range h.args[:nargs] {
		h.args[i] = le.Uint64(src[headSize+8*i:])
	}
	return true
}

// decode reads a message, and returns the payload of one that carries it. Whatever it
// accepts, encode would write the same: no byte is without a meaning or a check.
// What the numbers refer to is for others to check.
func (h *head) decode(src []byte, table uint32) (payload []byte, err error) {
	if h.decodeShort(src, table) {
		return nil, nil
	}
	le := binary.LittleEndian
	if len(src) < headSize {
		return nil, broken("is shorter than its head", len(src), headSize)
	}
	if src[0] != Version {
		return nil, broken("has another version", int(src[0]), Version)
	}
	if t := le.Uint32(src[20:]); t != table {
		return nil, &MessageError{Rule: "is of a program with other handlers", Got: uint64(t), Limit: uint64(table)}
	}
	k, flags, nargs := kind(src[1]), src[2], src[3]
	h.kind, h.cat, h.wants, h.nargs, h.handler = k, category(flags&categoryMask), flags&wantsBit != 0, nargs,
		le.Uint16(src[4:])
	h.token, h.length, h.off = le.Uint64(src[8:]), le.Uint32(src[16:]), 0
	n, err := h.credit.Decode(src[creditAt:creditTo])
	if err != nil {
		return nil, err
	}
	switch {
	case k == 0 || k >= kinds:
		return nil, broken("is of an unknown kind", int(k), int(kinds)-1)
	case flags > flagMask || flags&categoryMask >= byte(categories):
		return nil, broken("has unknown flags", int(flags), flagMask)
	case nargs > MaxArgs:
		return nil, broken("has too many arguments", int(nargs), MaxArgs)
	case le.Uint16(src[6:]) != 0 || nonZero(src[creditAt:headSize], n):
		return nil, broken("has bytes set that mean nothing", 1, 0)
	case h.credit.Epoch != connection:
		return nil, broken("belongs to another connection", int(h.credit.Epoch), connection)
	}
	if err := h.checkKind(); err != nil {
		return nil, err
	}
	at := headSize
	if h.cat != short {
		if payload, at, err = h.decodePayload(src); err != nil {
			return nil, err
		}
	}
	if len(src) != at+8*int(nargs) {
		return nil, broken("has another length than its parts", len(src), h.size())
	}
	for i := range h.args[:nargs] {
		h.args[i] = le.Uint64(src[at+8*i:])
	}
	return payload, nil
}

// checkKind holds the fields against the kind.
func (h *head) checkKind() error {
	switch h.kind {
	case request:
		if (h.token != 0) != h.wants {
			return broken("wants a reply without a token, or the reverse", 1, 0)
		}
	case reply, failure:
		if h.wants || h.handler != 0 || h.token == 0 {
			return broken("is a reply with the fields of a request", int(h.handler), 0)
		}
		if h.kind == failure && (h.cat != medium || h.nargs != 1) {
			return broken("is a failure of another form", int(h.nargs), 1)
		}
	case control, ping:
		if h.wants || h.handler != 0 || h.token != 0 || h.nargs != 0 || h.cat != short {
			return broken("has more than credits", int(h.nargs), 0)
		}
	default:
		return h.checkStep()
	}
	if h.cat == short && h.length != 0 {
		return broken("is short and has a payload", int(h.length), 0)
	}
	return nil
}

// checkStep is checkKind for the steps of a large payload.
func (h *head) checkStep() error {
	cat, nargs := short, 0
	switch h.kind {
	case announce:
		nargs = max(1, int(h.nargs))
	case grant:
		nargs = 2
	case refusal:
		cat = medium
	case data:
		cat = long
	}
	switch {
	case h.token == 0 || h.wants || h.handler != 0 && h.kind != announce:
		return broken("is a step of a large payload with the fields of a request", int(h.handler), 0)
	case h.cat != cat || int(h.nargs) != nargs || h.cat == short && h.length != 0:
		return broken("is a step of a large payload in another form", int(h.nargs), nargs)
	}
	return nil
}

// decodePayload reads what lies between head and arguments, and returns where these begin.
func (h *head) decodePayload(src []byte) (payload []byte, at int, err error) {
	body := src[headSize:]
	if h.cat == medium {
		n := int(h.length)
		if uint64(h.length) > uint64(len(body)) {
			return nil, 0, broken("has a payload beyond its end", n, len(body))
		}
		return body[:n:n], headSize + n, nil
	}
	if len(body) < offSize {
		return nil, 0, broken("has another length than its parts", len(src), h.size())
	}
	h.off = binary.LittleEndian.Uint64(body)
	if h.off > math.MaxUint64-uint64(h.length) {
		return nil, 0, &MessageError{Rule: "has an offset beyond every segment", Got: h.off,
			Limit: math.MaxUint64 - uint64(h.length)}
	}
	return nil, headSize + offSize, nil
}

// nonZero reports whether a byte behind the first n of a credit header's place is set; n is the
// header's size.
func nonZero(b []byte, n int) bool {
	if n == credit.HeaderSize { // as it is mostly
		return binary.LittleEndian.Uint64(b[n:])|binary.LittleEndian.Uint64(b[creditPlace-8:]) != 0
	}
	for _, x := range b[n:] {
		if x != 0 {
			return true
		}
	}
	return false
}
