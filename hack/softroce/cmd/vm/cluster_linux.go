package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/ibconduit/conduit/hack/softroce"
)

// runCluster runs one command in each of several VMs. The exit code is that of the first command to
// fail; a VM that ctl kill ended is no failure.
func runCluster(ctx context.Context, o *options, argv []string) int {
	if len(argv) == 0 {
		return fail(exitUsage, errors.New("cluster: no command"))
	}
	if o.timeout == 0 {
		o.timeout = defaultTimeout
	}
	if o.hosts < 2 {
		return fail(exitUsage, errors.New("cluster: -n must be at least 2; for one VM there is run"))
	}
	fetch, err := absolute(o.fetch)
	if err != nil {
		return fail(exitInfrastructure, err)
	}
	c, err := softroce.Start(ctx, o.config(o.hosts))
	if err != nil {
		return startFailed(ctx, err)
	}
	defer c.Close()
	dir := o.dir
	if dir == "" {
		dir = c.LogDir()
	}
	ctl, err := serveControl(c, o, dir)
	if err != nil {
		return fail(exitInfrastructure, err)
	}
	defer ctl.Close()
	return o.runEverywhere(ctx, c, argv, fetch)
}

func (o *options) runEverywhere(ctx context.Context, c *softroce.Cluster, argv, fetch []string) int {
	var (
		mu    sync.Mutex // of both outputs, so that lines stay whole
		all   sync.WaitGroup
		first firstFailure
	)
	for i := range c.Hosts() {
		all.Go(func() {
			h := c.Host(i)
			prefix := fmt.Sprintf("[vm%d] ", i)
			stdout := &lineWriter{mu: &mu, w: os.Stdout, prefix: prefix}
			stderr := &lineWriter{mu: &mu, w: os.Stderr, prefix: prefix}
			cmd := o.command(h, argv)
			cmd.Stdout, cmd.Stderr = stdout, stderr
			code := attend(ctx, o, cmd)
			stdout.flush()
			stderr.flush()
			first.add(code)
			if len(fetch) > 0 && h.Alive() && code != exitTimeout {
				// Each guest's files go below a folder of its own: they would overwrite each other.
				if err := h.FetchTo(ctx, filepath.Join(c.LogDir(), fmt.Sprintf("vm%d", i)), fetch...); err != nil {
					first.add(fail(exitInfrastructure, err))
				}
			}
		})
	}
	all.Wait()
	return first.code
}

type firstFailure struct {
	mu   sync.Mutex
	code int
}

func (f *firstFailure) add(code int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.code == 0 {
		f.code = code
	}
}
