package queue

import (
	"math/rand/v2"
	"slices"
	"testing"
)

type element struct{ a, b Link[element] }

func contents(l *List[element], link func(e *element) *Link[element]) (all []*element) {
	for e := l.First(); e != nil; e = link(e).Next() {
		all = append(all, e)
	}
	return all
}

func TestRandomOperationsKeepTheOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var lists [2]List[element]
	var model [2][]*element
	elements := make([]element, 12)
	link := func(e *element) *Link[element] { return &e.a }
	for step := range 20000 {
		e, i := &elements[rng.IntN(len(elements))], rng.IntN(2)
		for j := range model {
			model[j] = slices.DeleteFunc(model[j], func(x *element) bool { return x == e })
		}
		if rng.IntN(3) == 0 {
			e.a.Leave()
			e.a.Leave() // which does nothing
		} else {
			lists[i].Add(&e.a, e)
			model[i] = append(model[i], e)
			if e.a.In() != &lists[i] {
				t.Fatalf("step %d: it is in another list", step)
			}
		}
		for j := range lists {
			got := contents(&lists[j], link)
			if !slices.Equal(got, model[j]) || lists[j].Len() != len(got) {
				t.Fatalf("step %d: list %d has %d elements, want %d in the order added", step, j, lists[j].Len(), len(model[j]))
			}
			if last := lists[j].Last(); len(got) == 0 && last != nil || len(got) > 0 && last != got[len(got)-1] {
				t.Fatalf("step %d: the last of list %d is another", step, j)
			}
		}
	}
}

func TestLinksOfAnElementAreIndependent(t *testing.T) {
	var one, two List[element]
	var e element
	one.Add(&e.a, &e)
	two.Add(&e.b, &e)
	e.a.Leave()
	if one.First() != nil || one.Len() != 0 || e.a.In() != nil || e.a.Next() != nil || two.First() != &e {
		t.Error("leaving one list is leaving the other")
	}
}

func TestARingIsFirstInFirstOut(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var r Ring[int]
	var model []int
	for step := range 200_000 {
		switch k := rnd.IntN(100); {
		case k < 50+step/10_000%5:
			r.Push(step)
			model = append(model, step)
		case k == 99:
			n := rnd.IntN(len(model) + 1)
			r.Truncate(n)
			model = model[:n]
		case len(model) > 0:
			if v := r.Pop(); v != model[0] {
				t.Fatalf("step %d: %d comes out, want %d", step, v, model[0])
			}
			model = model[1:]
		}
		if r.Len() != len(model) || len(model) > 0 && (*r.Item(0) != model[0] || *r.Item(len(model) - 1) != model[len(model)-1]) {
			t.Fatalf("step %d: it has %d elements, want %d", step, r.Len(), len(model))
		}
	}
	for r.Len() > 0 {
		r.Pop()
	}
	for range 5000 {
		r.Push(1)
	}
	for r.Len() > 0 {
		r.Pop()
	}
	if len(r.buf) > 1024 {
		t.Errorf("an empty ring keeps room for %d", len(r.buf))
	}
}
