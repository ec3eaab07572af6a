package main

import (
	"context"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/doctor"
)

// doctorCmd is ibbench doctor.
type doctorCmd struct {
	Device string `short:"d" placeholder:"DEV" help:"Look at this verbs device only. Default: all."`
	GID    string `name:"gid" default:"auto" placeholder:"N|auto" help:"GID table index to check. Default: auto."`
	Fabric string `default:"auto" enum:"auto,ibv,shm" help:"ibv: missing RDMA is a failure; shm: RDMA is not looked at. Default: auto."`
	Format string `default:"text" enum:"text,json" help:"text or json. Default: text."`
}

func (c *doctorCmd) run(ctx context.Context, io streams) error {
	code, err := doctor.Run(ctx, io.out, doctor.Options{Fabric: c.Fabric, Device: c.Device, GID: c.GID, Format: c.Format})
	if err != nil {
		return err
	}
	if code != 0 {
		return codeError(code)
	}
	return nil
}
