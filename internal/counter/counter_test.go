package counter

import "testing"

type inner struct{ A, B uint64 }

func TestSumsAreOfEachField(t *testing.T) {
	type all struct {
		inner
		N int
		I inner
	}
	got := Add(all{inner{1, 2}, -3, inner{4, 5}}, all{inner{10, 20}, 30, inner{40, 50}})
	if want := (all{inner{11, 22}, 27, inner{44, 55}}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestLoadReadsEachCounter(t *testing.T) {
	if n := (inner{1, 2}); Load(&n) != n {
		t.Errorf("%+v, want %+v", Load(&n), n)
	}
}
