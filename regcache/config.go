package regcache

import (
	"fmt"
	"os"
	"syscall"

	"github.com/ibconduit/conduit/internal/owner"
	"github.com/ibconduit/conduit/memevents"
)

// Env switches caching off when it is "off": every registration is then for one operation.
const Env = "IBCONDUIT_REGCACHE"

// WantEnv names the values of Env, for a message.
const WantEnv = "on or off"

// ValidEnv reports whether a value of Env means something. Empty is as good as not set.
func ValidEnv(v string) bool { return v == "" || v == "on" || v == "off" }

// DefaultMaxRegions is half of the regions that the whole process can watch, so that two caches
// fit.
const DefaultMaxRegions = 8192

// Config says how a Cache behaves. Only Registrar is required.
type Config struct {
	// Registrar registers memory.
	Registrar Registrar
	// MaxRegions bounds the registrations kept. Default DefaultMaxRegions.
	MaxRegions int
	// MaxBytes bounds the memory kept registered, in bytes. Beyond it, the entry not used for
	// longest goes (uses between two misses count as one moment); a range that does not fit beside
	// entries in use is registered for one operation. Default: a quarter of the physical memory, or
	// half of RLIMIT_MEMLOCK if that applies and is less.
	MaxBytes int64
	// MaxDeadBytes: when more bytes than that were invalidated, they are deregistered in the
	// background, without any Get or Put. In bytes. Default memevents.DefaultMaxDeadBytes;
	// negative: at once.
	MaxDeadBytes int64
	// Origin is what Get assumes. Default Any.
	Origin Origin
	// Strict makes Put fail with ErrInvalidated for a range of which pages were taken away since
	// Get; also for one in a larger registration that lost pages elsewhere, which may have been a
	// neighbour's. Ranges that are registered for one operation, and those that Retest drops, are
	// not watched, so of them nothing is said.
	Strict bool
	// Verify compares the page frames behind a range with those registered at each hit, and fails
	// with ErrStale when they differ. Slow; for debugging. It needs CAP_SYS_ADMIN
	// (proc_pid_pagemap(5)). Builds with -tags debug verify whenever they may.
	Verify bool
	// Uncached registers for each operation. The environment variable IBCONDUIT_REGCACHE=off does
	// the same.
	Uncached bool
}

// verifying: page frames are compared whenever the system allows.
const verifying = owner.Checked

// validate fills in the defaults.
func (c *Config) validate() error {
	bad := func(format string, args ...any) error {
		return &Error{Op: "new cache", Errno: syscall.EINVAL, Detail: fmt.Sprintf(format, args...)}
	}
	switch {
	case c.Registrar == nil:
		return bad("Config.Registrar is nil")
	case c.MaxRegions < 0:
		return bad("Config.MaxRegions is %d", c.MaxRegions)
	case c.MaxBytes < 0:
		return bad("Config.MaxBytes is %d", c.MaxBytes)
	case c.Origin >= numOrigins:
		return bad("Config.Origin is %v", c.Origin)
	}
	if c.MaxRegions == 0 {
		c.MaxRegions = DefaultMaxRegions
	}
	if memevents.Slots > 0 {
		c.MaxRegions = min(c.MaxRegions, memevents.Slots)
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = defaultMaxBytes()
	}
	if err := memevents.CheckEnvironment(); err != nil {
		return &Error{Op: "new cache", Err: err}
	}
	v := os.Getenv(Env)
	if !ValidEnv(v) {
		return bad("%s=%q: it is %s", Env, v, WantEnv)
	}
	c.Uncached = c.Uncached || v == "off"
	return nil
}
