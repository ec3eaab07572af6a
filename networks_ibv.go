//go:build linux && cgo

package conduit

import (
	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/fabric/ibv"
)

// newIBV opens the device, with lanes for the workers and for the parts of the job.
func newIBV(j *joining) (fabric.Network, error) {
	messages := ibv.MessageConfig{Endpoints: -1, Keepalive: j.cfg.Keepalive, Connections: j.cfg.MaxConnections, Eager: j.cfg.ConnectAll}
	if n := j.endpoints(); n > 0 {
		messages.Endpoints = n
	}
	return ibv.New(ibv.Config{
		Rank: j.rank, Size: j.size, Segment: j.seg,
		Device: j.cfg.Device, Port: j.cfg.Port, GIDIndex: j.cfg.gidIndex(),
		Lanes: j.cfg.Workers + j.needs.lanes, Depth: j.cfg.QueueDepth, Eager: j.cfg.EagerPeers, Connections: j.cfg.MaxConnections,
		ZeroCopyMin: j.cfg.ZeroCopyMin, Origin: j.cfg.BufferOrigin,
		Messages: messages, Sharing: &j.sharing, OnDown: j.members.die, Log: j.cfg.Logger,
	})
}
