//go:build !linux

package spin

import "runtime"

func yieldCore() { runtime.Gosched() }
