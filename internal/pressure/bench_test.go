package pressure

import "testing"

func BenchmarkRead(b *testing.B) {
	r := New()
	for b.Loop() {
		_ = r.Read()
	}
}
