//go:build linux && cgo

package ibv

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/verbs"
)

// Register registers memory with the device.
func (l *lane) Register(mem []byte) (*fabric.Memory, error) {
	e, err := l.enter("register")
	if err != nil {
		return nil, err
	}
	defer l.guard.Exit()
	if len(mem) == 0 {
		return nil, errors.New("ibv: register: there are no bytes to register")
	}
	n := e.net
	mr, err := n.pd.Register(unsafe.Pointer(unsafe.SliceData(mem)), uint64(len(mem)), verbs.AccessLocalWrite)
	if err != nil {
		return nil, fmt.Errorf("ibv: register %d bytes: %w", len(mem), err)
	}
	var m *fabric.Memory
	m = fabric.NewMemory(n, mem, mr.LKey(), func() error { return n.unregister(m) })
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.memories == nil {
		n.memories = make(map[*fabric.Memory]*verbs.MR)
	}
	n.memories[m] = mr
	return m, nil
}

// unregister is the network's part of closing memory. The network may have been first.
func (n *Network) unregister(m *fabric.Memory) error {
	n.mu.Lock()
	mr := n.memories[m]
	delete(n.memories, m)
	n.mu.Unlock()
	return closed(mr)
}
