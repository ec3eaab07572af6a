package main

import (
	"context"
	"errors"
)

func runCluster(ctx context.Context, o *options, argv []string) int {
	return fail(exitInfrastructure, errors.New("cluster: not yet"))
}
func runCtl(ctx context.Context, o *options, argv []string) int    { return runCluster(ctx, o, argv) }
func runSetup(ctx context.Context, o *options, argv []string) int  { return runCluster(ctx, o, argv) }
func runStatus(ctx context.Context, o *options, argv []string) int { return runCluster(ctx, o, argv) }
func runClean(ctx context.Context, o *options, argv []string) int  { return runCluster(ctx, o, argv) }
