//go:build race

package racesync

import (
	"runtime"
	"unsafe"
)

var communication byte

// Release is called before something is sent, or operations with others begin.
func Release() { runtime.RaceReleaseMerge(unsafe.Pointer(&communication)) }

// Acquire is called when something has arrived.
func Acquire() { runtime.RaceAcquire(unsafe.Pointer(&communication)) }
