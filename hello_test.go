package conduit

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

func FuzzHello(f *testing.F) {
	f.Add(hello{user: 5, layout: 1<<63 + 9, workers: 2, fabric: "auto", payloads: []uint64{3, 1<<63 + 5}, where: []byte("a host"), shm: []byte{1, 2}}.encode())
	f.Add(hello{user: 5, layout: 1<<63 + 9, workers: 2, messages: protocol{3, 2, 1<<63 + 7, []uint64{256, 4096}}, library: protocol{1, 1, 9, []uint64{64}}, fabric: "ibv"}.encode())
	f.Add([]byte{helloVersion})
	f.Add([]byte{helloAbstains, 'n', 'o'})
	f.Add([]byte{helloVersion, 0, 0, 0, 0, 0, 0, maxTerms + 1})                                                          // more than a rank would keep
	f.Add(append([]byte{helloVersion, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 3}, make([]byte, 1<<10)...)) // likewise
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeHello(b)
		if err != nil {
			return
		}
		again, err := decodeHello(h.encode())
		if err != nil || !reflect.DeepEqual(again, h) || len(h.messages.terms)+len(h.library.terms) > 2*maxTerms || len(h.payloads) > maxPayloads {
			t.Errorf("%+v comes back as %+v, %v", h, again, err)
		}
	})
}

func FuzzDeviceOfARank(f *testing.F) {
	f.Add([]byte{deviceLocal, 1, 2, 3})
	f.Add(noDevice(errors.New("the port is down")))
	f.Add([]byte{deviceMissing, 0, '\n', 0xff})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		said := [][]byte{{deviceGlobal, 7}, b}
		global, err := openDevices(said)
		if err == nil && (len(said[1]) != len(b)-1 || global && b[0] != deviceGlobal) {
			t.Errorf("%x: an address of %x, global %v", b, said[1], global)
		}
		if err != nil && (!strings.HasPrefix(err.Error(), "rank 1") || strings.ContainsAny(err.Error(), "\x00\n\x1b") || len(err.Error()) > 2*maxReason) {
			t.Errorf("%x: %q", b, err)
		}
	})
}

func TestWhyARankHasNoDeviceReachesTheOthers(t *testing.T) {
	_, err := openDevices([][]byte{{deviceLocal, 1}, noDevice(errors.New("ibv: rxe0 port 1 is down (ip link set eth0 up)"))})
	if want := "rank 1 has no usable verbs device: ibv: rxe0 port 1 is down (ip link set eth0 up)"; err == nil || err.Error() != want {
		t.Errorf("%v, want %q", err, want)
	}
}
