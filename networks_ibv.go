//go:build linux && cgo

package conduit

import (
	"github.com/ibconduit/conduit/fabric"
	"github.com/ibconduit/conduit/fabric/ibv"
)

// newIBV opens the device. One lane more than the workers may open serves the
// collective operations.
func newIBV(j *joining) (fabric.Network, error) {
	messages := ibv.MessageConfig{Endpoints: -1, Keepalive: j.cfg.Keepalive, Connections: j.cfg.MaxConnections, Eager: j.cfg.ConnectAll}
	if n := j.endpoints(); n > 0 {
		messages.Endpoints = n
	}
	return ibv.New(ibv.Config{
		Rank: j.rank, Size: j.size, Segment: j.seg,
		Device: j.cfg.Device, Port: j.cfg.Port, GIDIndex: j.cfg.gidIndex(),
		Lanes: j.cfg.Workers + 1, Depth: j.cfg.QueueDepth,
		ZeroCopyMin: j.cfg.ZeroCopyMin, Origin: j.cfg.BufferOrigin,
		Messages: messages, OnDown: j.members.die, Log: j.cfg.Logger,
	})
}
