package pressure

import "testing"

// On the machine of the test, whatever it has: what is read makes sense.
func TestThisMachine(t *testing.T) {
	reader := New()
	for _, s := range reader.Sources() {
		t.Logf("%s: %v: %s", s.Probe, s.Found, s.Says)
	}
	r := reader.Read()
	if len(r.Bounds) == 0 || r.MajorFaults < 0 {
		t.Fatalf("%+v", r)
	}
	for _, b := range r.Bounds {
		if b.Limit <= 0 || b.Used < 0 {
			t.Errorf("%+v", b)
		}
	}
	if h := ReadHeap(); h.Goal <= 0 || h.Used <= 0 || h.Total < h.Used || h.Limit <= 0 {
		t.Errorf("%+v", h)
	}
}
