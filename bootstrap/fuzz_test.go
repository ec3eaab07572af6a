package bootstrap

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
)

// FuzzFrames feeds every decoder of what arrives inside TLS. What is taken
// must survive being encoded again.
func FuzzFrames(f *testing.F) {
	h := hello{protocol: protocol, rank: 1, pid: 2, host: "n1", size: 4, job: "j", hostID: "b"}
	o := &outcome{op: opExchange, seq: 3, blobs: [][]byte{nil, []byte("x"), []byte("yz")}}
	for _, frame := range [][]byte{
		h.encode(), start{"j", 1, 2}.encode(),
		(&JoinError{Reason: ReasonMissing, Ranks: []int{1, 2}, Text: "t"}).encode(),
		encodeContribute(opBarrier, 1, []byte("b")), o.encodedLocked(),
		(&failure{1, "who", &cause{kind: causeAbort, code: -1, text: "t"}}).encode(), encodeGiveUp(7, "t"),
	} {
		f.Add(frame)
	}
	f.Add([]byte{6, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, data []byte) {
		kind, body, err := readFrame(bytes.NewReader(data), maxHello)
		if err != nil {
			return
		}
		const size = 3
		again := func(got any, err error, encode func() []byte, decode func([]byte) (any, error)) {
			if err != nil {
				return
			}
			second, err := decode(encode()[frameHeadBytes:])
			if err != nil || !reflect.DeepEqual(got, second) {
				t.Errorf("frame %d: %+v became %+v, %v", kind, got, second, err)
			}
		}
		switch kind {
		case frameHello:
			h, err := decodeHello(body)
			if h.protocol == protocol {
				again(h, err, h.encode, func(b []byte) (any, error) { return decodeHello(b) })
			}
		case frameStart:
			s, err := decodeStart(body)
			again(s, err, s.encode, func(b []byte) (any, error) { return decodeStart(b) })
		case frameRefused:
			e, err := decodeRefused(body)
			again(e, err, func() []byte { return e.encode() }, func(b []byte) (any, error) { return decodeRefused(b) })
		case frameOutcome:
			o, err := decodeOutcome(body, size)
			if err == nil && len(o.blobs) != size {
				t.Errorf("outcome for %d ranks", len(o.blobs))
			}
		case frameFailure:
			fl, err := decodeFailure(body, size)
			if err == nil && (fl.rank < 0 || fl.rank >= size || fl.err().Error() == "") {
				t.Errorf("%+v", fl)
			}
			again(fl, err, func() []byte { return fl.encode() }, func(b []byte) (any, error) { return decodeFailure(b, size) })
		case frameContribute:
			_, _, _, _ = decodeContribute(body)
		case frameGiveUp:
			_, _, _ = decodeGiveUp(body)
		}
	})
}

func FuzzHeader(f *testing.F) {
	f.Add(someHeader(1, 4).encode())
	f.Add([]byte("IBCH"))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := decodeHeader(data)
		if err != nil || h.version != wireVersion {
			return
		}
		if second, err := decodeHeader(h.encode()); err != nil || second != h {
			t.Errorf("%+v became %+v, %v", h, second, err)
		}
		if err := compare([]header{h, someHeader(1, 2)}); err != nil && err.Error() == "" {
			t.Error("an error without words")
		}
	})
}

func FuzzUnseal(f *testing.F) {
	f.Add(seal(1, []byte("head"), []byte("blob")))
	f.Fuzz(func(t *testing.T, data []byte) {
		head, blob, err := unseal(1, data)
		if err == nil && !bytes.Equal(seal(1, head, blob), data) {
			t.Errorf("%q and %q do not seal to what was opened", head, blob)
		}
	})
}

func FuzzPMILine(f *testing.F) {
	f.Add("cmd=get_result rc=0 msg=success value=V")
	f.Add("cmd=get_result rc=-1 msg=key not found value=unknown")
	f.Add("=x")
	f.Add("1.8.00000000")
	f.Fuzz(func(t *testing.T, line string) {
		if m, err := parsePMI(line); err == nil {
			if m["cmd"] == "" {
				t.Errorf("%q has no cmd", line)
			}
			for k, v := range m {
				if !strings.Contains(line, k+"="+v) {
					t.Errorf("%q=%q is not in %q", k, v, line)
				}
			}
		}
		if pieces, size, _, err := parsePMIHead(line); err == nil && (pieces < 0 || size < 0 || size > maxFrameToRoot) {
			t.Errorf("%q gives %d pieces of %d bytes", line, pieces, size)
		}
	})
}
