//go:build !linux

package spin

import "runtime"

func yieldCore() { runtime.Gosched() }

func allowed() []uint64 { return nil }
