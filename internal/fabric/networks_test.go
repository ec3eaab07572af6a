package fabric

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Under traffic there is no Wait, for hours perhaps, while more alarms are set.
func TestAlarmsWithoutAWaitDoNotPileUp(t *testing.T) {
	a := &Alarms{}
	for i := range 1000 {
		a.Add(time.Hour, time.Duration(i)*time.Millisecond)
	}
	if n := len(a.at); n > 2 {
		t.Errorf("%d alarms are kept that were due long ago", n)
	}
}

func TestEachAlarmIsTakenWhenItIsDue(t *testing.T) {
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		var a Alarms
		var model []time.Duration
		now := time.Duration(0)
		for range 200 {
			if at := now + 1 + time.Duration(rnd.IntN(20)); rnd.IntN(2) == 0 {
				if first := a.Add(now, at); first != (len(model) == 0 || at <= slices.Min(model)) {
					t.Fatalf("seed %d: an alarm at %d is the first: %v, others are at %d", seed, at, first, model)
				}
				model = append(model, at)
				continue
			}
			now += time.Duration(rnd.IntN(10))
			was := len(model)
			model = slices.DeleteFunc(model, func(at time.Duration) bool { return at <= now })
			want := Never
			if len(model) > 0 {
				want = slices.Min(model)
			}
			if due, next := a.Take(now); due != (len(model) < was) || next != want {
				t.Fatalf("seed %d: at %d one is due: %v, the next at %d, want %v and %d", seed, now, due, next, len(model) < was, want)
			}
		}
	}
}

// network is one that knows of deaths, and nothing else.
type network struct {
	Network
	Deaths
	reported []error
}

func (n *network) PeerDown(rank int, cause error) { n.Add(rank, cause) }

func TestADeathIsReportedBeforeItCounts(t *testing.T) {
	n := &network{}
	first, second := errors.New("first"), errors.New("second")
	onDown := func(rank int, cause error) {
		if n.Cause(rank) != nil || n.N.Load() != 0 {
			t.Error("operations fail before the program knows why")
		}
		n.reported = append(n.reported, cause)
	}
	n.Report(n, 3, first, onDown)
	n.Report(n, 3, second, onDown)
	var down *PeerDownError
	if err := n.Err("put", 3); !errors.As(err, &down) || down.Rank != 3 || down.Op != "put" || !errors.Is(err, first) {
		t.Errorf("a put to the rank: %v", err)
	}
	if !slices.Equal(n.reported, []error{first}) || n.Add(3, second) || n.N.Load() != 1 {
		t.Errorf("reported %v, %d are down", n.reported, n.N.Load())
	}
	if !n.Add(300, nil) || n.Cause(300) == nil || n.Err("get", 4) != nil {
		t.Errorf("one without a cause: %v; one that lives: %v", n.Cause(300), n.Err("get", 4))
	}
	found := map[int]bool{}
	n.Each(func(rank int, cause error) { found[rank] = cause != nil })
	if len(found) != 2 || !found[3] || !found[300] {
		t.Errorf("down are %v", found)
	}
}
