package metrics

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/am"
)

func TestKnownMessagesGiveExactCounters(t *testing.T) {
	table := am.NewTable()
	echo := table.Handle("echo", func(c *am.Call) { _ = c.ReplyWith(am.Medium(c.Payload())) })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cfg := shm
	cfg.Handlers, cfg.MessageEndpoints = table, 2
	err := conduit.RunLocalConfig(ctx, 2, cfg, func(j *conduit.Job) error {
		if j.Rank() == 1 {
			return j.Barrier(ctx)
		}
		c := NewCollector(j)
		before, err := gather(c)
		if err != nil {
			return err
		}
		for range 3 {
			if _, err := echo.CallWith(ctx, j, 1, am.Medium(make([]byte, 100))); err != nil {
				return err
			}
		}
		if err := errors.Join(echo.Post(ctx, j, 1), echo.Post(ctx, j, 0)); err != nil {
			return err
		}
		after, err := gather(c)
		if err != nil {
			return err
		}
		for series, want := range map[string]float64{
			`requests_sent_total{kind="call",network="shm",rank="0"}`:         3,
			`requests_sent_total{kind="post",network="shm",rank="0"}`:         2,
			`calls_ended_total{how="reply",network="shm",rank="0"}`:           3,
			`calls_in_flight{network="shm",rank="0"}`:                         0,
			`requests_arrived_total{network="shm",rank="0",result="handled"}`: 1, // its own
			`port_messages_total{direction="sent",network="shm",rank="0"}`:    4,
			`port_messages_total{direction="arrived",network="shm",rank="0"}`: 3,
			`port_rnr_total{network="shm",rank="0"}`:                          0,
			`replies_total{network="shm",rank="0",where="unwanted"}`:          1,
			`port_connections_total{by="this_rank",network="shm",rank="0"}`:   1,
			`local_total{network="shm",rank="0"}`:                             1,
		} {
			a, ok := after[prefix+"message_"+series]
			if b := before[prefix+"message_"+series]; !ok || a-b != want {
				return fmt.Errorf("%s grew from %v to %v (present: %v), want %v more", series, b, a, ok, want)
			}
		}
		return j.Barrier(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// number gives every number in a structure a value of its own, and keeps its name.
func number(v reflect.Value, path string, names map[float64]string) {
	for i := range v.NumField() {
		f, name := v.Field(i), path+v.Type().Field(i).Name
		n := 1000 + len(names)
		switch f.Kind() {
		case reflect.Struct:
			number(f, name+".", names)
			continue
		case reflect.Int:
			f.SetInt(int64(n))
		default:
			f.SetUint(uint64(n))
		}
		names[float64(n)] = name
	}
}

func TestEachCounterOfMessagesHasOneSeries(t *testing.T) {
	var s am.Stats
	names := make(map[float64]string)
	number(reflect.ValueOf(&s).Elem(), "", names)
	shown := map[string]int{
		// What follows from the others.
		"Large.Announced": 1, // ended and in flight
		"Large.Offered":   1, // ended and held
		"Requests":        1, // handled and refused
		"Arrived":         1, // requests, replies, pings and what was dropped, less what is local
		"Posted":          1, // arrived less lent
		"Written":         1, // writes less those in flight
		"Pool.Arrivals":   1, // as in am.Stats
		"Pool.Replies":    1,
	}
	messages("shm", s, func(f Figure) { shown[names[f.Value]]++ })
	for _, name := range names {
		if shown[name] != 1 {
			t.Errorf("am.Stats.%s has %d series, want 1", name, shown[name])
		}
	}
	if len(shown) != len(names) {
		t.Errorf("there are series of %d counters, want %d", len(shown), len(names))
	}
}

func TestTheLibrarysMessagesAreCountedApart(t *testing.T) {
	program, apart := make(map[string]bool), 0
	messages("shm", am.Stats{}, func(f Figure) { program[f.Name] = true })
	library("shm", am.Stats{}, func(f Figure) {
		apart++
		if name, ok := strings.CutPrefix(f.Name, "library_"); !ok || !program[name] {
			t.Errorf("%s has no counterpart", f.Name)
		}
	})
	if apart == 0 {
		t.Error("there are no series")
	}
}

func TestAJobWithoutHandlersHasNoSeriesOfMessages(t *testing.T) {
	cfg := shm
	cfg.Handlers = am.NewTable()
	err := conduit.RunLocalConfig(t.Context(), 1, cfg, func(j *conduit.Job) error {
		got, err := gather(NewCollector(j))
		for name := range got {
			if strings.HasPrefix(name, prefix+"message_") {
				return fmt.Errorf("there is %s", name)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
