package credit

import (
	"encoding/binary"
	"fmt"
)

// WireVersion changes with the encoding of Header. Ranks compare it when they start.
const WireVersion = 1

// Sizes of an encoded header in bytes.
const (
	HeaderSize   = 8  // without Extended
	ExtendedSize = 20 // with
)

// Header is the state of the credits of both directions, as one end of a pair has it. Every
// message and control message carries one. All counters are totals
// of the connection, so a header that is lost, repeated or late does no harm.
//
// On the wire, little endian:
//
//	bytes  field
//	0-3    Granted
//	4-5    Epoch
//	6-7    Want (bits 0-13), Answer (bit 14), Extended (bit 15)
//	8-11   Recall     these only
//	12-15  Returned   when Extended
//	16-19  Seen       is set
type Header struct {
	Epoch  uint16 // the connection's number modulo 2^16
	Answer bool   // the reader shall send a control message
	// As the receiver of the reader's messages:
	Granted uint32 // credits granted
	Recall  uint32 // credits recalled
	// As a sender to the reader:
	Want     uint16 // how many credits it wants to hold; 0: as before. At most MaxWindow
	Returned uint32 // credits given back
	Seen     uint32 // the Recall that it has acted upon

	Extended bool // Recall, Returned and Seen are there
}

const (
	wantMask         = MaxWindow
	answerBit        = 1 << 14
	extendedBit      = 1 << 15
	_           uint = MaxWindow - (answerBit - 1) // the fields do not overlap
)

// Asks reports whether it says more than the grants: whether a Pool has to Apply it.
func (h *Header) Asks() bool { return h.Want != 0 || h.Answer || h.Extended }

// Size is the encoded length.
func (h *Header) Size() int {
	if h.Extended {
		return ExtendedSize
	}
	return HeaderSize
}

// Encode writes h to dst, which has at least Size bytes, and returns how many it wrote.
func (h *Header) Encode(dst []byte) int {
	bits := h.Want & wantMask
	if h.Answer {
		bits |= answerBit
	}
	n := HeaderSize
	if h.Extended {
		bits |= extendedBit
		n = ExtendedSize
		_ = dst[ExtendedSize-1]
		binary.LittleEndian.PutUint32(dst[8:], h.Recall)
		binary.LittleEndian.PutUint32(dst[12:], h.Returned)
		binary.LittleEndian.PutUint32(dst[16:], h.Seen)
	}
	_ = dst[HeaderSize-1]
	binary.LittleEndian.PutUint32(dst, h.Granted)
	binary.LittleEndian.PutUint16(dst[4:], h.Epoch)
	binary.LittleEndian.PutUint16(dst[6:], bits)
	return n
}

// Decode reads a header from the start of src and returns its length. It checks
// the form only: Apply of Pool and Sender check the numbers.
func (h *Header) Decode(src []byte) (int, error) {
	if len(src) < HeaderSize {
		return 0, fmt.Errorf("credit: a credit header of %d bytes, it has at least %d", len(src), HeaderSize)
	}
	if v := binary.LittleEndian.Uint64(src); !h.DecodeWord(v) {
		return h.decodeExtended(src)
	}
	return HeaderSize, nil
}

// DecodeWord is Decode for one of HeaderSize bytes. It reports whether there are no more.
func (h *Header) DecodeWord(v uint64) bool {
	bits := uint16(v >> 48)
	h.Granted, h.Epoch, h.Want, h.Answer = uint32(v), uint16(v>>32), bits&wantMask, bits&answerBit != 0
	h.Recall, h.Returned, h.Seen, h.Extended = 0, 0, 0, false
	return bits&extendedBit == 0
}

// Word is what Encode writes of one that is not Extended.
func (h *Header) Word() uint64 {
	bits := h.Want & wantMask
	if h.Answer {
		bits |= answerBit
	}
	return uint64(bits)<<48 | uint64(h.Epoch)<<32 | uint64(h.Granted)
}

func (h *Header) decodeExtended(src []byte) (int, error) {
	if len(src) < ExtendedSize {
		return 0, fmt.Errorf("credit: an extended credit header of %d bytes, it has %d", len(src), ExtendedSize)
	}
	h.Extended = true
	h.Recall = binary.LittleEndian.Uint32(src[8:])
	h.Returned = binary.LittleEndian.Uint32(src[12:])
	h.Seen = binary.LittleEndian.Uint32(src[16:])
	return ExtendedSize, nil
}

// ahead is by how much a total is newer than the one known; negative: the
// header is older. Totals wrap around; a difference is right while it is less
// than 2^31, and none here exceeds the pool's size.
func ahead(total, known uint32) int { return int(int32(total - known)) }
