package fabric

import (
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/cpu"
)

// Atomic is an operation on one aligned word of a peer's segment, for Lane.Atomic.
//
// It is atomic to all other operations of Lane.Atomic on the word, from whatever rank, as long as
// all come over one network (see Limits.CPUAtomics). A device's atomics are not atomic to puts, nor
// to loads and stores of the owner (IBTA vol 1 §9.4.5). It has atomics of 64 bits only: there an
// operation on 32 bits is a compare-swap of the aligned 64 bits that they lie in, and a put to the
// other half at the same time may be lost. Atomics on the other half are not.
type Atomic struct {
	Op   AtomicOp
	Type WordType
	// Operand and Compare are the bits of values of Type. Of a type of 32 bits the lower half counts.
	Operand uint64
	Compare uint64 // of CompareSwap
}

// AtomicOp is what an Atomic does. All operations can return the old value.
type AtomicOp uint8

// The operations.
const (
	FetchAdd    AtomicOp = iota // word += operand, which wraps around
	CompareSwap                 // if word == compare { word = operand }
	Swap                        // word = operand
	FetchAnd                    // word &= operand
	FetchOr                     // word |= operand
	FetchXor                    // word ^= operand
	FetchMin                    // word = min(word, operand)
	FetchMax                    // word = max(word, operand)
	numAtomics
)

var atomicNames = [numAtomics]string{"fetch-add", "compare-swap", "swap", "fetch-and", "fetch-or", "fetch-xor",
	"fetch-min", "fetch-max"}

func (op AtomicOp) String() string {
	if op < numAtomics {
		return atomicNames[op]
	}
	return "unknown atomic"
}

// WordType is the type of the word that an Atomic works on.
type WordType uint8

// The types. Float64 has FetchAdd only, as IEEE 754 defines the sum.
const (
	Uint64 WordType = iota
	Int64
	Uint32
	Int32
	Float64
	numWordTypes
)

var wordTypeNames = [numWordTypes]string{"uint64", "int64", "uint32", "int32", "float64"}

func (t WordType) String() string {
	if t < numWordTypes {
		return wordTypeNames[t]
	}
	return "unknown type"
}

// Size is the size of a word in bytes.
func (t WordType) Size() uint64 {
	return 8 >> (t >> 1 & 1) // Uint32 and Int32 are those with bit 1
}

// ErrNoAtomic is wrapped by the error of an Atomic that does not exist.
var ErrNoAtomic = errors.New("there is no such atomic operation")

// Valid reports whether the operation exists for the type.
func (a *Atomic) Valid() bool {
	return a.Op < numAtomics && a.Type < numWordTypes && (a.Type != Float64 || a.Op == FetchAdd)
}

// Check returns the fault of the operation at an offset of a rank's segment of size bytes: a
// *BoundsError, an *AlignError, or an error that wraps ErrNoAtomic.
func (a *Atomic) Check(rank int, off, size uint64) error {
	n := a.Type.Size()
	if err := CheckRange(a.Op.String(), rank, off, n, size); err != nil {
		return err
	}
	if err := CheckRange(a.Op.String(), rank, off&^7, 8, size); n < 8 && err != nil {
		return err
	}
	if off%n != 0 {
		return &AlignError{Op: a.Op.String(), Rank: rank, Off: off, Align: n}
	}
	if !a.Valid() {
		return fmt.Errorf("%v (%d) of %v (%d): %w", a.Op, uint8(a.Op), a.Type, uint8(a.Type), ErrNoAtomic)
	}
	return nil
}

// Apply returns the result of the operation on a word. Of a type of 32 bits the lower half counts,
// and the upper half of the result is 0.
func (a *Atomic) Apply(old uint64) uint64 {
	if a.Type == Float64 {
		return math.Float64bits(math.Float64frombits(old) + math.Float64frombits(a.Operand))
	}
	x, y := a.Type.extend(old), a.Type.extend(a.Operand)
	switch a.Op {
	case FetchAdd:
		x += y
	case CompareSwap:
		if x == a.Type.extend(a.Compare) {
			x = y
		}
	case Swap:
		x = y
	case FetchAnd:
		x &= y
	case FetchOr:
		x |= y
	case FetchXor:
		x ^= y
	case FetchMin:
		if a.Type.less(y, x) {
			x = y
		}
	case FetchMax:
		if a.Type.less(x, y) {
			x = y
		}
	}
	if a.Type.Size() == 4 {
		x = uint64(uint32(x))
	}
	return x
}

// extend returns the integer of 64 bits that has a word's value.
func (t WordType) extend(v uint64) uint64 {
	switch t {
	case Uint32:
		return uint64(uint32(v))
	case Int32:
		return uint64(int64(int32(v)))
	}
	return v
}

func (t WordType) less(x, y uint64) bool {
	if t == Int64 || t == Int32 {
		return int64(x) < int64(y)
	}
	return x < y
}

// Outer returns the result of the operation at an offset on the aligned word of 64 bits that its
// own lies in: the same as Apply, but for types of 32 bits. Both ranks have this rank's byte order.
func (a *Atomic) Outer(off, word uint64) uint64 {
	if a.Type.Size() == 8 {
		return a.Apply(word)
	}
	s := shift(off)
	return word&^(math.MaxUint32<<s) | a.Apply(word>>s)<<s
}

// Inner returns the operation's own word out of that one.
func (a *Atomic) Inner(off, word uint64) uint64 {
	if a.Type.Size() == 8 {
		return word
	}
	return uint64(uint32(word >> shift(off)))
}

// shift is by how many bits a word of 32 bits at an offset is above the lowest bit of the word that
// it lies in. A device's atomics take words in the byte order of its host.
func shift(off uint64) uint64 {
	s := off & 4 * 8
	if cpu.IsBigEndian {
		s ^= 32
	}
	return s
}
