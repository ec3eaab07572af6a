package conduit

import (
	"reflect"
	"testing"
)

func FuzzHello(f *testing.F) {
	f.Add(hello{user: 5, system: 4096, workers: 2, fabric: "auto", shm: []byte{1, 2}}.encode())
	f.Add(hello{user: 5, system: 4096, workers: 2, handlers: 3, lanes: 2, hash: 1<<63 + 7, terms: []uint64{256, 4096}, fabric: "ibv"}.encode())
	f.Add([]byte{helloVersion})
	f.Add([]byte{helloVersion, 0, 0, 0, 0, 0, 0, maxTerms + 1}) // more than a rank would keep
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeHello(b)
		if err != nil {
			return
		}
		again, err := decodeHello(h.encode())
		if err != nil || !reflect.DeepEqual(again, h) || len(h.terms) > maxTerms {
			t.Errorf("%+v comes back as %+v, %v", h, again, err)
		}
	})
}
