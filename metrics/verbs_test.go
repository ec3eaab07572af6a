package metrics

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/internal/rdmatest"
)

func TestOverVerbsOperationsAreExactAndThePortCountsPackets(t *testing.T) {
	dev := rdmatest.Device(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cfg := conduit.Config{SegmentSize: 1 << 20, Fabric: conduit.FabricIBV, Device: dev}
	err := conduit.RunLocalConfig(ctx, 2, cfg, func(j *conduit.Job) error {
		if err := j.Barrier(ctx); err != nil {
			return err
		}
		if j.Rank() == 1 {
			return nil
		}
		w, err := j.NewWorker()
		if err != nil {
			return err
		}
		defer w.Close()
		c := NewCollector(j)
		before, err := gather(c)
		if err != nil {
			return err
		}
		const puts = 10
		for i := range int64(puts) {
			if err := conduit.Put(w, conduit.At[int64](1, 0), i); err != nil {
				return err
			}
		}
		if v, err := conduit.Get(w, conduit.At[int64](1, 0)); err != nil || v != puts-1 {
			return fmt.Errorf("got %d, %v", v, err)
		}
		after, err := gather(c)
		if err != nil {
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
