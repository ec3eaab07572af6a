//go:build linux && cgo

package conduit

import (
	"slices"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/ibv"
)

// newIBV opens the device, with lanes for the workers and for the parts of the job, and so many
// message endpoints.
func newIBV(j *Job, endpoints int) (fabric.Network, error) {
	messages := ibv.MessageConfig{Endpoints: -1, Keepalive: j.cfg.Keepalive, Connections: j.cfg.MaxConnections,
		Eager: j.cfg.ConnectAll}
	if endpoints > 0 {
		messages.Endpoints = endpoints
	}
	return ibv.New(ibv.Config{
		Rank: j.rank, Size: j.size, Segment: j.seg,
		Device: j.cfg.Device, Port: j.cfg.Port, GIDIndex: j.cfg.gidIndex(),
		Lanes: j.cfg.Workers + j.needs.lanes, Depth: j.cfg.QueueDepth, Eager: j.cfg.EagerPeers,
		Connections: j.cfg.MaxConnections,
		ZeroCopyMin: j.cfg.ZeroCopyMin, Origin: j.cfg.BufferOrigin,
		Messages: messages, Sharing: &j.sharing, OnDown: j.members.die, Log: j.cfg.Logger,
	})
}

// pinnedBuffers is how many bytes a device has pinned beside the segment: for all lanes that may be
// open, and for the endpoints.
func pinnedBuffers(j *Job) (uint64, error) {
	var all []fabric.EndpointConfig
	for _, s := range []*endpoints{&j.messages, &j.library} {
		if s.table.Len() == 0 {
			continue
		}
		c, err := s.params.Network()
		if err != nil {
			return 0, err
		}
		all = append(all, slices.Repeat([]fabric.EndpointConfig{c}, s.each)...)
	}
	return ibv.PinnedBytes(j.cfg.Workers+j.needs.lanes, j.cfg.QueueDepth, all), nil
}
