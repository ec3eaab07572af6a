package conduit

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/ibconduit/conduit/internal/errtext"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/spin"
)

// hello is what every rank sends every other first.
type hello struct {
	user     uint64 // bytes of the user's region; not on the wire, but in an exchange of its own
	layout   uint64 // segment.Layout.Hash
	workers  uint64
	heap     uint64   // Config.HeapSize
	symm     uint64   // Config.SymmetricSize
	shared   uint64   // arrays.Table.Hash
	messages protocol // of the program
	library  protocol // of the library's parts
	fabric   string
	payloads []uint64 // hashes of the names of MemoryConfig.Payloads, ascending; none where they are too many
	where    []byte   // spin.Processors
	shm      []byte   // address of internal/fabric/shm, empty without
}

// protocol is what ranks must have alike to understand each other's messages.
type protocol struct {
	handlers  uint64   // how many; 0: no messages, and the rest is 0 too
	endpoints uint64   // on each network
	hash      uint64   // of the handlers
	terms     []uint64 // am.Config.Terms
}

// helloVersion is the wire version of hello:
//
//	1 byte    version
//	uvarint   layout, workers, heap, symm, shared
//	uvarint   handlers, endpoints, hash, length of terms, then each of them: the program's, then
//	          the library's
//	uvarint   length of payloads, then each of them, 8 bytes, little endian
//	uvarint   length of fabric, then its bytes
//	uvarint   length of where, then its bytes
//	rest      shm
//
// or, from a rank that cannot take part:
//
//	1 byte    helloAbstains
//	rest      the reason, text
const (
	helloVersion  = 7
	helloAbstains = 0xff
)

// maxTerms and maxPayloads bound what a hello makes this rank keep, maxReason what of a reason
// travels.
const (
	maxTerms    = 64
	maxPayloads = 128
	maxReason   = 512
)

// newHello has the terms that ranks must agree on, and the facts that they must know of each other.
func newHello(j *Job) (h hello, err error) {
	h = hello{layout: j.layout.Hash(), workers: uint64(j.cfg.Workers), fabric: j.cfg.Fabric, where: spin.Processors(),
		heap: uint64(j.cfg.HeapSize), symm: uint64(j.cfg.SymmetricSize), shared: j.cfg.Shared.arrays.Hash(),
		payloads: j.cfg.Memory.taken()}
	if h.messages, err = newProtocol(&j.messages); err == nil {
		h.library, err = newProtocol(&j.library)
	}
	return h, err
}

// newProtocol is what this rank has of a kind of messages.
func newProtocol(s *endpoints) (a protocol, err error) {
	n := s.table.Len()
	if n == 0 {
		return a, nil
	}
	terms, err := s.params.Terms()
	if err != nil {
		return a, fmt.Errorf("%s: %w", s.words.params, err)
	}
	a = protocol{handlers: uint64(n), endpoints: uint64(s.each), hash: s.table.Hash()}
	for _, t := range terms {
		a.terms = append(a.terms, t.Value)
	}
	return a, nil
}

func (h *hello) numbers() []*uint64 {
	return []*uint64{&h.layout, &h.workers, &h.heap, &h.symm, &h.shared}
}

func (h *hello) protocols() []*protocol { return []*protocol{&h.messages, &h.library} }

func (a *protocol) numbers() []*uint64 { return []*uint64{&a.handlers, &a.endpoints, &a.hash} }

func (h hello) encode() []byte {
	b := []byte{helloVersion}
	for _, v := range h.numbers() {
		b = binary.AppendUvarint(b, *v)
	}
	for _, a := range h.protocols() {
		for _, v := range a.numbers() {
			b = binary.AppendUvarint(b, *v)
		}
		b = binary.AppendUvarint(b, uint64(len(a.terms)))
		for _, v := range a.terms {
			b = binary.AppendUvarint(b, v)
		}
	}
	b = binary.AppendUvarint(b, uint64(len(h.payloads)))
	for _, v := range h.payloads {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	for _, s := range []string{h.fabric, string(h.where)} {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	return append(b, h.shm...)
}

func decodeHello(b []byte) (h hello, err error) {
	if len(b) > 0 && b[0] == helloAbstains {
		return h, fmt.Errorf("it cannot take part: %s", errtext.Printable(b[1:], maxReason))
	}
	if len(b) == 0 || b[0] != helloVersion {
		return h, fmt.Errorf("hello of version %v, this is version %d: mixed binaries", b[:min(len(b), 1)], helloVersion)
	}
	b = b[1:]
	next := func() (v uint64) {
		v, used := binary.Uvarint(b)
		if used <= 0 {
			err, used = errors.New("truncated hello"), 0
		}
		b = b[used:]
		return v
	}
	for _, v := range h.numbers() {
		*v = next()
	}
	for _, a := range h.protocols() {
		for _, v := range a.numbers() {
			*v = next()
		}
		if n := next(); n <= maxTerms {
			for range n {
				a.terms = append(a.terms, next())
			}
		} else if err == nil {
			err = fmt.Errorf("hello with %d terms", n)
		}
	}
	take := func(n uint64) (s []byte) {
		if err == nil && n > uint64(len(b)) {
			err = errors.New("truncated hello")
		}
		if err == nil {
			s, b = b[:n:n], b[n:]
		}
		return s
	}
	text := func() []byte { return take(next()) }
	n := next()
	if err == nil && n > maxPayloads {
		err = fmt.Errorf("hello with the names of %d payload functions", n)
	}
	for s := take(8 * n); len(s) > 0; s = s[8:] {
		h.payloads = append(h.payloads, binary.LittleEndian.Uint64(s))
	}
	h.fabric, h.where = string(text()), text()
	if err != nil {
		return hello{}, err
	}
	h.shm = b
	return h, nil
}

// decodeSize reads the size of a rank's segment: 1 byte helloVersion, then a uvarint; or an
// abstention.
func decodeSize(b []byte) (uint64, error) {
	if len(b) > 0 && b[0] == helloAbstains {
		return 0, fmt.Errorf("it cannot take part: %s", errtext.Printable(b[1:], maxReason))
	}
	if len(b) > 0 && b[0] == helloVersion {
		if n, used := binary.Uvarint(b[1:]); used == len(b)-1 && n <= 1<<62 {
			return n, nil
		}
	}
	return 0, fmt.Errorf("malformed size of its segment: %.16x", b)
}

// abstention is what a rank that cannot take part sends instead of a hello.
func abstention(why error) []byte { return reason(helloAbstains, why) }

func reason(kind byte, why error) []byte {
	text := why.Error()
	return append([]byte{kind}, text[:min(len(text), maxReason)]...)
}

// A rank's device in the exchange: one byte, and then its address, or why it has none, so that all
// ranks fail with its name and reason.
const (
	deviceLocal   = iota // its atomics are atomic among themselves
	deviceGlobal         // also with the processor's
	deviceMissing        // followed by the reason
)

func deviceOf(n fabric.Network) []byte {
	kind := byte(deviceLocal)
	if n.Limits().CPUAtomics {
		kind = deviceGlobal
	}
	return append([]byte{kind}, n.Addr()...)
}

func noDevice(why error) []byte { return reason(deviceMissing, why) }

// openDevices leaves the addresses in the ranks' hellos. global: the atomics of all devices are
// atomic with the processor's.
func openDevices(sent [][]byte) (global bool, err error) {
	global = true
	for r, s := range sent {
		switch {
		case len(s) == 0 || s[0] > deviceMissing:
			return false, fmt.Errorf("rank %d: malformed description of its verbs device: %.16x", r, s)
		case s[0] == deviceMissing:
			return false, fmt.Errorf("rank %d has no usable verbs device: %s", r, errtext.Printable(s[1:], maxReason))
		}
		global = global && s[0] == deviceGlobal
		sent[r] = s[1:]
	}
	return global, nil
}
