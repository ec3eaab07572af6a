package am

import (
	"runtime"
	"time"

	"github.com/ibconduit/conduit/internal/park"
)

// Host is what an endpoint runs in: goroutines and real time, or a simulation.
type Host interface {
	// Go starts a goroutine.
	Go(name string, f func())
	// NewParker returns a new one.
	NewParker() Parker
	// Sleep lets at least d pass.
	Sleep(d time.Duration)
	// Yield lets others run.
	Yield()
}

// Parker lets one goroutine wait for another.
type Parker = park.Parker

// Goroutines is the host of everything but simulations.
type Goroutines struct{}

// Go starts a goroutine.
func (Goroutines) Go(_ string, f func()) { go f() }

// Sleep is time.Sleep.
func (Goroutines) Sleep(d time.Duration) { time.Sleep(d) }

// Yield is runtime.Gosched.
func (Goroutines) Yield() { runtime.Gosched() }

// NewParker returns one that is a channel.
func (Goroutines) NewParker() Parker { return park.New() }
