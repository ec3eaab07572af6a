package bootstrap

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
)

// wireVersion of the header and of the seal. It changes whenever either does.
const wireVersion = 2

// headerMagic begins every header: "IBCH".
const headerMagic = 0x48434249

// maxHeaderString bounds every string in headers and hellos, in bytes.
const maxHeaderString = 1024

// header describes a rank to all others; it travels in the first Exchange.
type header struct {
	version    uint16
	bigEndian  bool
	rank, size uint32
	pid        uint32
	pageSize   uint32
	build      string
	job        string
	host       string
	hostID     string // equal for processes that share a kernel and a host name
}

func ownHeader(id identity, opts Options) header {
	return header{
		version: wireVersion, bigEndian: bigEndian(),
		rank: uint32(id.rank), size: uint32(id.size), pid: uint32(os.Getpid()),
		pageSize: uint32(os.Getpagesize()),
		build:    clip(opts.Build), job: clip(id.job), host: clip(hostname()), hostID: clip(hostID()),
	}
}

func bigEndian() bool { return binary.NativeEndian.Uint16([]byte{0, 1}) == 1 }

func clip(s string) string { return s[:min(len(s), maxHeaderString)] }

func (h header) encode() []byte {
	le := binary.LittleEndian
	b := le.AppendUint32(nil, headerMagic)
	b = le.AppendUint16(b, h.version)
	var flags uint16
	if h.bigEndian {
		flags = 1
	}
	b = le.AppendUint16(b, flags)
	for _, v := range []uint32{h.rank, h.size, h.pid, h.pageSize} {
		b = le.AppendUint32(b, v)
	}
	for _, s := range []string{h.build, h.job, h.host, h.hostID} {
		b = appendString(b, s)
	}
	return b
}

// decodeHeader reads a header. Of another version it reads the part that no
// version may move: magic, version, flags, rank, size, pid.
func decodeHeader(b []byte) (header, error) {
	d := decoder{b: b}
	if magic := d.u32(); d.err == nil && magic != headerMagic {
		return header{}, fmt.Errorf("it begins with %08x, not %08x: %w", magic, uint32(headerMagic), ErrCorrupt)
	}
	h := header{version: d.u16()}
	h.bigEndian = d.u16()&1 != 0
	h.rank, h.size, h.pid = d.u32(), d.u32(), d.u32()
	if h.version == wireVersion {
		h.pageSize = d.u32()
		h.build, h.job, h.host, h.hostID = d.str(), d.str(), d.str(), d.str()
		d.end()
	}
	return h, d.err
}

// compare checks that the ranks fit together. headers[i] came as blob i, and
// every rank sees the same headers, so every rank comes to the same words.
func compare(headers []header) error {
	var e MismatchError
	check := func(field, todo string, value func(header) string) {
		if d, differ := differences(field, headers, value); differ {
			d.Remedy = todo
			e.Differences = append(e.Differences, d)
		}
	}
	const same = "remedy: start the same program file everywhere"
	check("wire version", same, func(h header) string { return strconv.Itoa(int(h.version)) })
	if len(e.Differences) > 0 { // the other fields of a foreign version are unknown
		return &e
	}
	check("build", same, func(h header) string { return strconv.Quote(h.build) })
	check("job", "remedy: give each job an address of its own, and all its ranks one IBCONDUIT_JOB",
		func(h header) string { return strconv.Quote(h.job) })
	check("size", "", func(h header) string { return strconv.Itoa(int(h.size)) })
	check("page size", "", func(h header) string { return strconv.Itoa(int(h.pageSize)) })
	check("byte order", "", func(h header) string {
		if h.bigEndian {
			return "big-endian"
		}
		return "little-endian"
	})
	for i, h := range headers {
		if h.rank != uint32(i) {
			e.Differences = append(e.Differences, Difference{
				Field: "rank", Values: []RankValue{{strconv.Itoa(int(h.rank)), []int{i}}},
			})
		}
	}
	if len(e.Differences) > 0 {
		return &e
	}
	return nil
}

func differences(field string, headers []header, value func(header) string) (Difference, bool) {
	byValue := map[string][]int{}
	for i, h := range headers {
		byValue[value(h)] = append(byValue[value(h)], i)
	}
	d := Difference{Field: field}
	for v, ranks := range byValue {
		d.Values = append(d.Values, RankValue{v, ranks})
	}
	slices.SortFunc(d.Values, func(a, b RankValue) int {
		return cmp.Or(cmp.Compare(len(b.Ranks), len(a.Ranks)), cmp.Compare(a.Ranks[0], b.Ranks[0]))
	})
	return d, len(d.Values) > 1
}

// decoder reads little-endian fields; the first error stays.
type decoder struct {
	b   []byte
	err error
}

var errShort = errors.New("message too short")

func (d *decoder) take(n int) []byte {
	if d.err == nil && n > len(d.b) {
		d.err = errShort
	}
	if d.err != nil {
		return make([]byte, min(n, 8))
	}
	p := d.b[:n:n]
	d.b = d.b[n:]
	return p
}

func (d *decoder) u8() uint8   { return d.take(1)[0] }
func (d *decoder) u16() uint16 { return binary.LittleEndian.Uint16(d.take(2)) }
func (d *decoder) u32() uint32 { return binary.LittleEndian.Uint32(d.take(4)) }

func (d *decoder) str() string {
	n := int(d.u16())
	if d.err == nil && n > maxHeaderString {
		d.err = fmt.Errorf("string of %d bytes, at most %d", n, maxHeaderString)
	}
	if d.err != nil {
		return ""
	}
	return string(d.take(n))
}

func (d *decoder) end() {
	if d.err == nil && len(d.b) > 0 {
		d.err = fmt.Errorf("%d bytes too many", len(d.b))
	}
}

// appendString writes u16 length and bytes, cut to what decoders accept.
func appendString(b []byte, s string) []byte {
	s = clip(s)
	return append(binary.LittleEndian.AppendUint16(b, uint16(len(s))), s...)
}
