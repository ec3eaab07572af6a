package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/internal/rdmatest"
)

// onJacobi runs a Jacobi on n ranks of this process.
func onJacobi(t *testing.T, p JacobiParams, n int, cfg conduit.Config, before func(*Jacobi, *conduit.Worker) error) ([]Usage, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	all := make([]*Jacobi, n)
	results := make([]Usage, n)
	for r := range all {
		j, err := NewJacobi(p, n)
		if err != nil {
			t.Fatal(err)
		}
		all[r] = j
	}
	all[0].Configure(&cfg)
	if cfg.Memory.Fetches != nil {
		cfg.Memory.Fetches = map[string]func(*conduit.FetchRequest){faceName: func(r *conduit.FetchRequest) { all[r.Job().Rank()].x.asks(r) }}
	} else {
		cfg.Memory.Payloads = map[string]func(*conduit.Payload){faceName: func(p *conduit.Payload) { all[p.Job().Rank()].x.take(p) }}
	}
	err := conduit.RunLocalConfig(ctx, n, cfg, func(job *conduit.Job) error {
		w, err := job.NewWorker()
		if err != nil {
			return err
		}
		j := all[job.Rank()]
		if before != nil {
			err = before(j, w)
		}
		if err == nil {
			results[job.Rank()], err = j.Run(ctx, w)
		}
		return errors.Join(err, job.Budget().Check(), w.Close())
	})
	return results, err
}

// jacobis are all arms, with budgets for parts of a set, for one, for some and for all.
func jacobis(width int) (all []JacobiParams) {
	p := JacobiParams{Cubes: 3, Edge: 8, Width: width, Iterations: 5, Seed: 7}
	for _, p.Arm = range JacobiArms {
		if p.Arm != ArmTokens {
			all = append(all, p)
		}
	}
	p.Arm = ArmTokens
	for _, p.Tokens = range []int{1, 4, 6, 15, 64} {
		all = append(all, p)
	}
	return all
}

func TestJacobiVerifiesItsResult(t *testing.T) {
	for n, width := range map[int]int{1: 2, 2: 1, 3: 2} {
		for _, p := range jacobis(width) {
			t.Run(fmt.Sprintf("%s/%d/%d/%d", p.Arm, p.Tokens, p.Width, n), func(t *testing.T) {
				res, err := onJacobi(t, p, n, conduit.Config{Fabric: conduit.FabricSHM, SegmentSize: 1 << 16}, nil)
				if err != nil {
					t.Fatal(err)
				}
				checkJacobi(t, p, res)
			})
		}
	}
}

// checkJacobi holds that memory is what the arm should have.
func checkJacobi(t *testing.T, p JacobiParams, all []Usage) {
	t.Helper()
	for r, res := range all {
		if res.Elapsed <= 0 {
			t.Errorf("rank %d: %+v", r, res)
		}
		s := res.Sizes
		faces := s.Persistent / p.cubeBytes() * sides * s.Piece
		want := s.InFlight
		if p.Arm == ArmAdaptive {
			want = faces + packers*s.Piece
		}
		if res.Peak > want || res.Received < s.Piece || (p.Arm == ArmNormal || p.Arm == ArmFetch) && res.Peak != want {
			t.Errorf("rank %d: %d bytes of faces at once, %d of them ghosts; want %d", r, res.Peak, res.Received, want)
		}
		if p.Arm == ArmTokens && res.Received > int64(p.Tokens)*s.Piece {
			t.Errorf("rank %d: ghost faces of %d bytes with %d tokens of %d", r, res.Received, p.Tokens, s.Piece)
		}
	}
}

func TestJacobiOverVerbs(t *testing.T) {
	rdmatest.Device(t)
	for _, arm := range []string{ArmNormal, ArmTokens} {
		p := JacobiParams{Arm: arm, Tokens: 6, Cubes: 2, Edge: 16, Width: 2, Iterations: 3}
		res, err := onJacobi(t, p, 2, conduit.Config{Fabric: conduit.FabricIBV, SegmentSize: 1 << 16}, nil)
		if err != nil {
			t.Fatal(err)
		}
		checkJacobi(t, p, res)
	}
}

func TestAFaceIsAnsweredWhenItIsReady(t *testing.T) {
	p := JacobiParams{Cubes: 2, Edge: 8, Iterations: 2}
	answered := make(chan error, 1)
	_, err := onJacobi(t, p, 2, conduit.Config{Fabric: conduit.FabricSHM, SegmentSize: 1 << 16}, func(j *Jacobi, w *conduit.Worker) error {
		if w.Job().Rank() != 0 {
			return w.Barrier(t.Context())
		}
		// Nobody has computed anything when a face of iteration 1 is asked for.
		asker, err := w.Job().NewWorker()
		if err != nil {
			return err
		}
		set := conduit.NewFetchSet(asker)
		face := conduit.FetchFrom[float32](set, 1, faceName, j.cubes.face(), 0, 1, 1)
		pending, err := set.Post()
		if err != nil {
			return err
		}
		for begin := time.Now(); time.Since(begin) < 20*time.Millisecond; time.Sleep(time.Millisecond) {
			if l, err := pending.Test(); l != nil || err != nil {
				return fmt.Errorf("an answer before there is one: %v, %v", l, err)
			}
		}
		go func() {
			answered <- func() error {
				l, err := pending.Wait(t.Context())
				if err != nil {
					return errors.Join(err, asker.Close())
				}
				cube, want := make([]float32, 8*8*8), make([]float32, j.cubes.face())
				_ = j.cubes.each(1, 0, 1, j.wave, func(at int, row []float32) error {
					copy(cube[at:], row)
					return nil
				})
				j.cubes.pack(want, cube, 1)
				for i, v := range face.Data() {
					if d := v - want[i]; d > 1e-6 || d < -1e-6 {
						err = fmt.Errorf("cell %d of the face: %v, want %v", i, v, want[i])
					}
				}
				l.Release()
				return errors.Join(err, asker.Close())
			}()
		}()
		return w.Barrier(t.Context())
	})
	if err := errors.Join(err, <-answered); err != nil {
		t.Error(err)
	}
}

func TestJacobiFindsAWrongCell(t *testing.T) {
	for _, arm := range JacobiArms {
		p := JacobiParams{Arm: arm, Cubes: 2, Edge: 8, Iterations: 3}
		_, err := onJacobi(t, p, 2, conduit.Config{Fabric: conduit.FabricSHM, SegmentSize: 1 << 16}, func(j *Jacobi, w *conduit.Worker) error {
			if w.Job().Rank() == 1 {
				j.cubes.w, j.wave.phase = 1, j.wave.phase+0.001 // what this rank's cubes begin with
			}
			return w.Barrier(t.Context()) // handlers of faces read it
		})
		var wrong *WrongError
		if !errors.As(err, &wrong) {
			t.Errorf("%s: %v, want a *WrongError", arm, err)
		}
	}
}

func TestNonsenseJacobisAreRefused(t *testing.T) {
	for want, p := range map[string]JacobiParams{
		"no arm": {Arm: "x"}, "tokens": {Tokens: -1}, "cubes along x": {Cubes: -1}, "ghost faces of 3": {Width: 3},
		"cubes of 1 cells": {Edge: 1, Width: 2}, "cubes of 513": {Edge: 513}, "-1 iterations": {Iterations: -1},
	} {
		if _, err := NewJacobi(p, 2); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", p, err, want)
		}
	}
}

func TestTauIsTheModels(t *testing.T) {
	for want, p := range map[float64]JacobiParams{0.09375: {Edge: 64, Width: 1}, 0.1875: {Edge: 64, Width: 2}, 0.375: {Edge: 32, Width: 2}} {
		p.Arm = ArmNormal
		s, err := p.Sizes()
		if err != nil || s.Tau != want {
			t.Errorf("%+v: tau %v, want %v; %v", p, s.Tau, want, err)
		}
	}
}
