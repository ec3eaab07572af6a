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
	for _, frame := range [][]byte{
		encodeFrame(frameHello, &hello{protocol: protocol, rank: 1, pid: 2, host: "n1", size: 4, job: "j", hostID: "b"}),
		encodeFrame(frameStart, &start{"j", 1, 2}),
		encodeFrame(frameRefused, &JoinError{Reason: ReasonMissing, Ranks: []int{1, 2}, Text: "t"}),
		encodeFrame(frameContribute, &contribution{opBarrier, 1, []byte("b")}),
		encodeFrame(frameOutcome, &outcome{op: opExchange, seq: 3, blobs: [][]byte{nil, []byte("x"), []byte("yz")}}),
		encodeFrame(frameFailure, &failure{1, "who", &cause{kind: causeAbort, code: -1, text: "t"}}),
		encodeFrame(frameGiveUp, &withdrawal{7, "t"}),
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
		fresh := map[frameType]func() message{
			frameHello: func() message { return &hello{} }, frameStart: func() message { return &start{} },
			frameRefused: func() message { return &JoinError{} }, frameContribute: func() message { return &contribution{} },
			frameFailure: func() message { return &failure{why: &cause{}} }, frameGiveUp: func() message { return &withdrawal{} },
			frameOutcome: func() message { return &outcome{blobs: make([][]byte, size)} },
		}[kind]
		if fresh == nil {
			return
		}
		first, second := fresh(), fresh()
		if err := decode(body, first); err != nil {
			return
		}
		if h, ok := first.(*hello); ok && h.protocol != protocol {
			return
		}
		if err := decode(encode(nil, first), second); err != nil || !reflect.DeepEqual(first, second) {
			t.Errorf("frame %d: %+v became %+v, %v", kind, first, second, err)
		}
		if f, err := decodeFailure(body, size); kind == frameFailure && err == nil && (f.rank < 0 || f.rank >= size || f.err().Error() == "") {
			t.Errorf("%+v", f)
		}
	})
}

func FuzzHeader(f *testing.F) {
	some := someHeader(1, 4)
	f.Add(encode(nil, &some))
	f.Add([]byte("IBCH"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var h, second header
		if err := decode(data, &h); err != nil || h.version != wireVersion {
			return
		}
		if err := decode(encode(nil, &h), &second); err != nil || second != h {
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
	})
}
