//go:build !linux

package spin

import (
	"runtime"
	"time"
)

func yieldCore() { runtime.Gosched() }

func processor() []byte { return nil }

func sleepBriefly(d time.Duration) { time.Sleep(d) }

func allowed() []uint64 { return nil }

func quotaGroup() uint64 { return 0 }
