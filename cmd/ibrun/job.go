package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/ibconduit/conduit/cmd/internal/given"
	"github.com/ibconduit/conduit/internal/launch"
)

// add reads the program behind a colon.
func (c *command) add(w words) error {
	var s segment
	parser, err := kong.New(&s, kong.Name("ibrun"), kong.NoDefaultHelp(), given.Values())
	if err != nil {
		panic(err) // the struct tags are wrong
	}
	if len(w.program) == 0 {
		return errors.New("no program behind the colon; one that is an argument: ibrun -- program :")
	}
	if _, err := parser.Parse(w.options()); err != nil {
		return fmt.Errorf("behind the colon: %w", err)
	}
	s.Program = w.program
	c.all = append(c.all, s)
	return nil
}

func (c *command) check() error {
	switch {
	case c.Ranks != nil && *c.Ranks < 1:
		return fmt.Errorf("-n %d: need at least 1 rank", *c.Ranks)
	case c.Grace <= 0:
		return fmt.Errorf("--grace=%v: need a time above 0", c.Grace)
	case c.Timeout < 0:
		return fmt.Errorf("--timeout=%v: need a time above 0, or 0 for never", c.Timeout)
	case c.Output != "" && c.Prefix != nil && *c.Prefix:
		return errors.New("--output: files have no prefix")
	case len(c.Host) > 0 && c.Hostfile != "":
		return errors.New("-H and --hostfile: one of them")
	}
	total := 0
	if c.Ranks != nil {
		total = min(*c.Ranks, launch.MaxRanks+1)
	}
	for i := range c.all {
		s, where := &c.all[i], ""
		if i > 0 {
			where = "behind the colon: "
		}
		switch {
		case len(s.Program) == 0:
			return errors.New("no program to run")
		case s.Program[0] == "":
			return errors.New(where + "the name of the program is empty, as that of a variable that is not set")
		case i > 0 && s.Ranks < 1:
			return fmt.Errorf("-n %d: need at least 1 rank", s.Ranks)
		}
		var err error
		if s.Env, err = variables(s.Env); err != nil {
			return err
		}
		total += min(s.Ranks, launch.MaxRanks)
	}
	if total > launch.MaxRanks {
		return fmt.Errorf("-n %d: at most %d ranks can meet", total, launch.MaxRanks)
	}
	return nil
}

// variables completes names alone with the values of this process.
func variables(env []string) (all []string, err error) {
	for _, kv := range env {
		k, _, ok := strings.Cut(kv, "=")
		if !ok && k != "" {
			v, set := os.LookupEnv(k)
			if !set {
				return nil, fmt.Errorf("--env=%s: it has no value here; want K=V", k)
			}
			kv, ok = k+"="+v, true
		}
		switch {
		case !ok || k == "":
			return nil, fmt.Errorf("--env=%s: want K=V", kv)
		case launch.Sets(k):
			return nil, fmt.Errorf("--env=%s: ibrun itself sets %s for each rank", kv, k)
		}
		all = append(all, kv)
	}
	return all, nil
}

// environment is what one program has of its own, and the library that all preload.
func (c *command) environment(own []string) ([]string, error) {
	if !c.Preload {
		return own, nil
	}
	before := os.Getenv("LD_PRELOAD")
	for _, kv := range own {
		if v, ok := strings.CutPrefix(kv, "LD_PRELOAD="); ok {
			before = v
		}
	}
	kv, err := preload(before)
	return append(slices.Clone(own), kv), err
}

// config is the job, but for what run itself is given.
func (c *command) config() (launch.Config, error) {
	cfg := launch.Config{
		RankEnv: func(int) []string { return nil }, Output: c.Output, Bind: c.BindTo, Placement: c.Report, Stacks: true,
		SSH: strings.Fields(os.Getenv("IBCONDUIT_SSH")), Grace: c.Grace, JobControl: true, Adopt: true, Guard: true,
	}
	if c.BindTo == "none" {
		cfg.Bind = ""
	}
	behind := 0
	for _, s := range c.all[1:] {
		behind += s.Ranks
	}
	hosts, n, err := c.hosts(behind)
	if err != nil {
		return cfg, err
	}
	c.all[0].Ranks = n - behind
	for _, p := range c.all {
		env, err := c.environment(p.Env)
		if err != nil {
			return cfg, err
		}
		cfg.Programs = append(cfg.Programs, launch.Program{N: p.Ranks, Path: p.Program[0], Args: p.Program[1:], Env: env})
	}
	cfg.Hosts = hosts
	prefixes := n > 1
	if c.Prefix != nil {
		prefixes = *c.Prefix
	}
	if c.Output != "" {
		prefixes = false
	}
	cfg.Direct = !prefixes && c.Output == ""
	if prefixes {
		cfg.Prefix = prefix(n, hosts)
	}
	return cfg, nil
}

// prefix aligns the numbers: "[ 3] ", and "[node1  3] " over several hosts.
func prefix(n int, hosts []launch.Host) func(int) string {
	width := len(strconv.Itoa(n - 1))
	if len(hosts) == 0 {
		return func(rank int) string { return fmt.Sprintf("[%*d] ", width, rank) }
	}
	name, widest := map[int]string{}, 0
	for _, h := range hosts {
		widest = max(widest, len(h.Name))
		for _, r := range h.Ranks {
			name[r] = h.Name
		}
	}
	return func(rank int) string { return fmt.Sprintf("[%-*s %*d] ", widest, name[rank], width, rank) }
}
