package bootstrap

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strconv"
)

// wireVersion of the header and of the seal. It changes whenever either does.
const wireVersion = 2

// headerMagic begins every header: "IBCH".
const headerMagic = 0x48434249

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

// fields: of another version only those are read that no version may move.
func (h *header) fields(c *codec) {
	magic, flags := uint32(headerMagic), uint16(0)
	if h.bigEndian {
		flags = 1
	}
	c.numbers(&magic)
	if c.err == nil && magic != headerMagic {
		c.fail(fmt.Errorf("it begins with %08x, not %08x: %w", magic, uint32(headerMagic), ErrCorrupt))
	}
	c.numbers(&h.version, &flags, &h.rank, &h.size, &h.pid)
	if h.bigEndian = flags&1 != 0; c.reads && h.version != wireVersion {
		c.stop()
		return
	}
	c.numbers(&h.pageSize)
	c.texts(&h.build, &h.job, &h.host, &h.hostID)
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
