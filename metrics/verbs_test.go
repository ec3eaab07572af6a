package metrics

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/internal/rdmatest"
)

func TestOverVerbsOperationsAreExact(t *testing.T) {
	dev := rdmatest.Device(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cfg := conduit.Config{SegmentSize: 1 << 20, Fabric: conduit.FabricIBV, Device: dev}
	err := conduit.RunLocalConfig(ctx, 2, cfg, func(j *conduit.Job) error {
		const puts = 10
		before, after, err := operate(ctx, j, func(w *conduit.Worker) error {
			for i := range int64(puts) {
				if err := conduit.Put(w, conduit.At[int64](1, 0), i); err != nil {
					return err
				}
			}
			if v, err := conduit.Get(w, conduit.At[int64](1, 0)); err != nil || v != puts-1 {
				return fmt.Errorf("got %d, %v", v, err)
			}
			return nil
		})
		if err != nil || j.Rank() != 0 {
			return err
		}
		for name, want := range map[string]float64{
			`ibconduit_operations_total{network="ibv",op="put",rank="0"}`:      puts,
			`ibconduit_operations_total{network="ibv",op="get",rank="0"}`:      1,
			`ibconduit_operation_bytes_total{network="ibv",op="put",rank="0"}`: 8 * puts,
			`ibconduit_transfers_total{network="ibv",path="inline",rank="0"}`:  puts,
			`ibconduit_operations_completed_total{network="ibv",rank="0"}`:     puts + 1,
			`ibconduit_operation_errors_total{network="ibv",rank="0"}`:         0,
		} {
			if got := after[name] - before[name]; got != want {
				return fmt.Errorf("%s grew by %v, want %v", name, got, want)
			}
		}
		port := j.Info().Devices[0]
		if port.Device != dev {
			return fmt.Errorf("the job says it uses %s, not %s", port.Device, dev)
		}
		if len(dev) < 3 || dev[:3] != "rxe" {
			return nil // other drivers name their counters otherwise
		}
		sent := fmt.Sprintf(`ibconduit_port_events_total{device=%q,event="sent_pkts",port="%d",rank="0"}`, port.Device, port.Port)
		if got := after[sent] - before[sent]; got < puts+1 {
			return fmt.Errorf("%s grew by %v, want %d or more", sent, got, puts+1)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestOverVerbsRegistrationsAreCounted(t *testing.T) {
	dev := rdmatest.Device(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cfg := conduit.Config{SegmentSize: 4 << 20, Fabric: conduit.FabricIBV, Device: dev, ZeroCopyMin: 4096}
	var last *Collector
	err := conduit.RunLocalConfig(ctx, 2, cfg, func(j *conduit.Job) error {
		if err := j.Barrier(ctx); err != nil || j.Rank() == 1 {
			return err
		}
		w, err := j.NewWorker()
		if err != nil {
			return err
		}
		defer w.Close()
		last = NewCollector(j)
		before, err := gather(last)
		if err != nil {
			return err
		}
		const puts = 5
		own := make([]byte, 100_000)
		for range puts {
			if err := conduit.PutSlice(w, conduit.At[byte](1, 0), own); err != nil {
				return err
			}
		}
		if err := conduit.PutSlice(w, conduit.At[byte](1, 0), own[:1000]); err != nil {
			return err
		}
		after, err := gather(last)
		if err != nil {
			return err
		}
		grew := func(name string) float64 { return after[name] - before[name] }
		for name, want := range map[string]float64{
			`ibconduit_transfers_total{network="ibv",path="zerocopy",rank="0"}`: puts,
			`ibconduit_transfers_total{network="ibv",path="bounced",rank="0"}`:  1,
			`ibconduit_transfers_unregistered_total{network="ibv",rank="0"}`:    0,
			`ibconduit_registration_errors_total{rank="0"}`:                     0,
			`ibconduit_registrations_invalidated_in_use_total{rank="0"}`:        0,
		} {
			if got := grew(name); got != want {
				return fmt.Errorf("%s grew by %v, want %v", name, got, want)
			}
		}
		// What the runtime does meanwhile decides how many of them are hits.
		uses := 0.0
		for _, result := range []string{"hit", "miss", "uncached"} {
			uses += grew(`ibconduit_registration_lookups_total{rank="0",result="` + result + `"}`)
		}
		there := grew(`ibconduit_registrations{rank="0",state="live"}`) + grew(`ibconduit_registrations{rank="0",state="dead"}`)
		made, ended := grew(`ibconduit_registrations_made_total{rank="0"}`), grew(`ibconduit_registrations_ended_total{rank="0"}`)
		if uses != puts || made < 1 || made-ended != there {
			return fmt.Errorf("%v uses of %v registrations, %v ended, %v are there", uses, made, ended, there)
		}
		if there > 0 && after[`ibconduit_registered_bytes{rank="0"}`] < float64(len(own)) {
			return fmt.Errorf("%v bytes are registered", after[`ibconduit_registered_bytes{rank="0"}`])
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	closed, err := gather(last) // a scrape after Close
	if err != nil || closed[`ibconduit_registrations{rank="0",state="live"}`] != 0 || closed[`ibconduit_registrations_made_total{rank="0"}`] == 0 {
		t.Errorf("after Close: %v, %v", closed, err)
	}
}
