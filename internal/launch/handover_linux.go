package launch

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// handover is the means by which the ranks of a host meet: the job's secret and, for rank 0, the
// listeners.
type handover struct {
	job, secret string
	dir         string   // of the socket; "" where there is none
	held        *os.File // keeps others from removing it, or nil
	addr        string   // of the listener on loopback; "" where there is none
	listener    *os.File // on loopback, or nil
	socket      *os.File // unix, or nil
}

// newHandover makes the job's id and secret.
func newHandover() *handover {
	var b [40]byte
	rand.Read(b[:])
	return &handover{job: fmt.Sprintf("launch-%d-%s", os.Getpid(), hex.EncodeToString(b[:8])),
		secret: hex.EncodeToString(b[8:])}
}

// open opens the rendezvous: a unix socket, which takes no network, and a port on loopback,
// which a rank reaches that sees other files. One of them suffices. They are bound before any rank
// runs: no other process can take them, and no rank dials too early.
func (h *handover) open() error {
	removeDead()
	noSocket := h.openSocket()
	noPort := h.openPort()
	if noSocket != nil && noPort != nil {
		return fmt.Errorf("launch: the ranks cannot meet: %w; %w (set TMPDIR to a directory where a socket can be made, "+
			"or: ip link set lo up)", noSocket, noPort)
	}
	return nil
}

// openSocket makes the socket in a directory of its own, for this user only.
func (h *handover) openSocket() (err error) {
	for _, parent := range socketParents() {
		dir, e := os.MkdirTemp(parent, dirPrefix) // its mode is 0700
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		// a long path is an error
		ln, e := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(dir, socketName)})
		if e == nil {
			ln.SetUnlinkOnClose(false)
			h.socket, e = ln.File()
			_ = ln.Close()
		}
		if e == nil {
			h.dir, h.held = dir, holdDir(dir)
			return nil
		}
		_ = os.RemoveAll(dir)
		err = errors.Join(err, e)
	}
	return err
}

func (h *handover) openPort() error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer ln.Close()
	// Without the interface the address can be bound all the same, and no rank dials it.
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		return err
	}
	defer c.Close()
	if accepted, err := ln.Accept(); err == nil { // or rank 0 would find it
		_ = accepted.Close()
	}
	h.listener, err = ln.(*net.TCPListener).File()
	h.addr = ln.Addr().String()
	return err
}

// env are the variables of all ranks.
func (h *handover) env() (env []string) {
	if h.addr != "" {
		env = append(env, "IBCONDUIT_ADDR="+h.addr)
	}
	if h.dir != "" {
		env = append(env, "IBCONDUIT_SOCKET="+filepath.Join(h.dir, socketName))
	}
	return env
}

// close closes what only rank 0 needs from now on.
func (h *handover) close() {
	for _, f := range []**os.File{&h.listener, &h.socket} {
		_ = (*f).Close() // of nil it does nothing
		*f = nil
	}
}

// remove ends the rendezvous.
func (h *handover) remove() {
	h.close()
	if h.dir != "" {
		removeDir(h.dir)
	}
	_ = h.held.Close() // of nil it does nothing
}
