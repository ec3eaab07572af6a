package am

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/parttest"
)

// explore visits every state of a model. Each must obey the rules, and end well or go on.
func explore(l *modelLimits) (states int, err error) {
	seen := make(map[string]struct{})
	var key []byte
	visit := func(m *model) bool {
		key = m.key(key[:0])
		if _, ok := seen[string(key)]; ok {
			return false
		}
		seen[string(key)] = struct{}{}
		return true
	}
	todo := []*model{newModel(l)}
	visit(todo[0])
	for len(todo) > 0 {
		m := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if err := m.check(); err != nil {
			return len(seen), fmt.Errorf("%w, in state %v", err, m.key(nil))
		}
		events := m.events()
		if len(events) == 0 && !m.done() {
			return len(seen), fmt.Errorf("nothing can happen any more, in state %v", m.key(nil))
		}
		for _, e := range events {
			n := m.clone()
			e(n)
			if visit(n) {
				todo = append(todo, n)
			}
		}
	}
	return len(seen), nil
}

// Every order of events ends well, with pools of one and two. One goroutine looks at all of them,
// and nothing in it is of another build: the plain one has all models, the others some.
func TestEveryOrderOfAcquisitionEndsWell(t *testing.T) {
	began, total, models := time.Now(), 0, 0
	scripts := [][]string{
		{"d0", "u0"}, {"d0", "u0", "c0"}, {"d0", "u0", "c1"}, {"d0c1", "p1u0"}, {"d0", "m0u0"}, {"d0", "t0u0", "p0"},
		{"c0c1p0", "c1c0p1"}, {"m0", "m0", "p0"}, {"m0", "t1", "p1"}, {"p0s0", "p0", "s0"}, {"c0", "c0", "c0"}, {"d0", "d0", "u0u0"},
		{"m0", "c0", "p0"}, {"c0", "c1", "m0"}, {"t0t0", "c0"}, {"d0", "c0", "m1u0"},
	}
	for i, s := range scripts {
		for pool := range 8 {
			if (i+pool)%10 >= parttest.Of(10) {
				continue
			}
			for variant := range 3 { // all connected, one refusal a request, none connected
				l := &modelLimits{scripts: s, replies: 1 + pool&1, credits: 1 + pool>>1&1, buffers: 1 + pool>>2, places: 1, shares: 1,
					incoming: pool & 1, mayRefuse: variant == 1, startsConnected: variant < 2}
				if strings.ContainsAny(strings.Join(s, ""), "mt") && l.buffers == 1 {
					continue // a program cannot prepare all buffers
				}
				l.places = 1 + (variant+1)&1 // the order holds whatever the places
				n, err := explore(l)
				if err != nil {
					t.Fatalf("%+v: %v", *l, err)
				}
				total += n
				models++
			}
		}
	}
	t.Logf("%d states of %d models, %v", total, models, time.Since(began).Round(time.Millisecond))
}
