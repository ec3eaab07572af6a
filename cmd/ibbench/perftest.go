package main

import "context"

type perftestCmd struct{}

func (c *perftestCmd) run(ctx context.Context, io streams) error { return nil }
