package cache_test

import (
	"github.com/ibconduit/conduit/env"
	"math/rand/v2"
)

type config struct{ Pages, PageSize, LineSize, Dirty, Ring int }

type setup struct {
	name string
	off  bool
	cfg  config
}

func (s setup) open(e env.Env, l env.Lanes) (remote, error) { return uncached{l}, nil }
func (s setup) roomy() bool                                 { return false }

var setups = []setup{
	{"off", true, config{PageSize: 1024, LineSize: 64}},
	{"off64", true, config{PageSize: 64, LineSize: 64}},
	{"off4096", true, config{PageSize: 4096, LineSize: 64}},
}

const guarded = false

type hintT int

const (
	readOnly hintT = iota
	private
	noHint
)

func (w *worker) intrudes()                {}
func (w *worker) bypass(l location)        {}
func (w *worker) hint(l location, h hintT) {}
func hints(w *worker) bool                 { return false }
func fetches(w *worker) int                { return 0 }
func counterErrors(r remote) error         { return nil }
func (w *worker) age()                     {}

var harmlessHints = []hintT{noHint}

func randomSetup(rng *rand.Rand) setup { return setups[rng.IntN(len(setups))] }
