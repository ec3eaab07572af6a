package bench

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/internal/pagepool"
)

// onIncast runs an Incast on n ranks of this process, and returns the result of rank 0.
func onIncast(t *testing.T, p IncastParams, n int, spoil func(*conduit.Payload)) (res IncastResult, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	kernel, err := NewIncast(p, n)
	if err != nil {
		t.Fatal(err)
	}
	cfg := conduit.Config{Fabric: conduit.FabricSHM, SegmentSize: 1 << 12}
	kernel.Configure(&cfg)
	if spoil != nil {
		take := cfg.Memory.Payloads[incastName]
		cfg.Memory.Payloads[incastName] = func(p *conduit.Payload) { spoil(p); take(p) }
	}
	err = conduit.RunLocalConfig(ctx, n, cfg, func(j *conduit.Job) error {
		w, err := j.NewWorker()
		if err != nil {
			return err
		}
		one, err := kernel.Run(ctx, w)
		if j.Rank() == 0 {
			res = one
		}
		return errors.Join(err, w.Close())
	})
	return res, err
}

func TestIncastStaysInItsMemory(t *testing.T) {
	for _, memory := range []int{1, 3, 0} {
		p := IncastParams{Size: 5000, Payloads: 40, Each: 4, Memory: memory}
		res, err := onIncast(t, p, 4, nil)
		if err != nil || res.Bytes != 3*40*5000 || res.Elapsed <= 0 || res.Peak > res.Limit || res.Peak < int64(pagepool.Round(5000)) {
			t.Errorf("memory for %d: %+v, %v", memory, res, err)
		}
	}
}

func TestIncastFindsAWrongByte(t *testing.T) {
	for _, at := range []int{0, 20, 99} {
		done := false
		_, err := onIncast(t, IncastParams{Size: 100, Payloads: 2, Each: 1}, 2, func(p *conduit.Payload) {
			if !done {
				p.Data()[at]++
				done = true
			}
		})
		if !errors.As(err, new(*WrongError)) {
			t.Errorf("byte %d: %v, want a *WrongError", at, err)
		}
	}
}

func TestNonsenseIncastsAreRefused(t *testing.T) {
	for want, p := range map[string]IncastParams{"payloads of 8 bytes": {Size: 8}, "-1 payloads": {Payloads: -1}, "memory for -1": {Memory: -1}} {
		if _, err := NewIncast(p, 2); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	if _, err := NewIncast(IncastParams{}, 1); err == nil {
		t.Error("an incast of one rank is not refused")
	}
}
