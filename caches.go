package conduit

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/ibconduit/conduit/cache"
	"github.com/ibconduit/conduit/internal/env"
)

// cacheNeeds are those of package cache.
func cacheNeeds(c *Config) needs {
	if c.Cache == nil {
		return needs{}
	}
	cfg := *c.Cache
	return needs{fenceMapped: cfg.Mapped || cfg.Check, fenceOwn: cfg.Check, fences: func(e env.Env, l env.Lanes) (env.Fences, error) {
		j := e.(view).j
		cfg.Begin = j.layout.UserOffset()
		cfg.Size = func(rank int) uint64 { return j.networks.routes[rank].user }
		return cache.New(e, l, cfg)
	}}
}

const wantCache = `0, 1, or a list such as "pages=1024,page=1024,line=64,dirty=128,ring=32,direct=1024,policy=2q,mapped"`

// cacheDefaults reads IBCONDUIT_CACHE and IBCONDUIT_CACHE_CHECK.
func (c *Config) cacheDefaults(env *environment) {
	c.cacheFrom(env)
	if env.bit("IBCONDUIT_CACHE_CHECK") {
		var checked cache.Config
		if c.Cache != nil {
			checked = *c.Cache
		}
		checked.Check = true
		c.Cache = &checked
	}
}

func (c *Config) cacheFrom(env *environment) {
	v := env.str("IBCONDUIT_CACHE", "")
	if c.Cache != nil || v == "" || v == "0" {
		return
	}
	cfg, ok := parseCache(v)
	if !ok {
		env.fail("IBCONDUIT_CACHE", v, wantCache)
		return
	}
	if _, err := cfg.WithDefaults(); err != nil {
		env.fail("IBCONDUIT_CACHE", v, err.Error())
		return
	}
	c.Cache = &cfg
}

// parseCache reads a list of what differs from the defaults.
func parseCache(v string) (cfg cache.Config, ok bool) {
	if v == "1" {
		return cfg, true
	}
	numbers := map[string]*int{"pages": &cfg.Pages, "page": &cfg.PageSize, "line": &cfg.LineSize, "dirty": &cfg.Dirty, "ring": &cfg.Ring, "direct": &cfg.DirectMin}
	switches := map[string]*bool{"mapped": &cfg.Mapped, "noreadahead": &cfg.NoReadahead, "nobypass": &cfg.NoBypass}
	for _, f := range strings.Split(v, ",") {
		name, value, has := strings.Cut(strings.TrimSpace(f), "=")
		switch at, on := numbers[name], switches[name]; {
		case at != nil && has:
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 {
				return cfg, false
			}
			*at = n
		case on != nil && !has:
			*on = true
		case name == "policy" && has:
			if cfg.Policy, ok = cache.ParsePolicy(value); !ok {
				return cfg, false
			}
		default:
			return cfg, false
		}
	}
	return cfg, true
}

func (c *Config) validateCache() error {
	if c.Cache == nil {
		return nil
	}
	if c.Cache.Region != "" || c.Cache.Size != nil || c.Cache.Begin != 0 {
		return &ConfigError{Field: "Cache", Value: "set in Region, Size or Begin", Want: "these unset: Join fills them in"}
	}
	_, err := c.Cache.WithDefaults()
	if wrong, ok := err.(*cache.ConfigError); ok {
		return &ConfigError{Field: "Cache." + wrong.Field, Value: fmt.Sprint(wrong.Value), Want: wrong.Want}
	}
	return err
}

// Acquire has what the worker reads from now on be no older than now, where it has a cache
// (Config.Cache). It takes some nanoseconds. Most programs need no call: what tells them that data
// are there acquires, see "Fences and parts" in the package comment.
func (w *Worker) Acquire() error {
	if err := w.enter("acquire"); err != nil {
		return err
	}
	defer w.exit()
	w.fences.acquire()
	return nil
}

// Fence is Flush and then Acquire, the latter also with an error.
func (w *Worker) Fence(ctx context.Context) error {
	if err := w.enter("fence"); err != nil {
		return err
	}
	defer w.exit()
	defer w.fences.acquire()
	return w.flush(ctx)
}

// CacheStats are the counters of the worker's cache; zero without one. It may be called from any
// goroutine, until Close.
func (w *Worker) CacheStats() cache.Stats {
	w.job.workers.mu.Lock()
	defer w.job.workers.mu.Unlock()
	return w.fences.stats()
}

// CacheStats sums the counters of the caches of all workers, open and closed.
func (j *Job) CacheStats() cache.Stats {
	j.workers.mu.Lock()
	defer j.workers.mu.Unlock()
	s := j.workers.retiredCaches
	for w := range j.workers.open {
		s = s.Add(w.fences.stats())
	}
	return s
}
