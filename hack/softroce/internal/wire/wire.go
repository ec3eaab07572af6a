// Package wire is how the host and the agent in a guest talk, over one byte stream (a virtio-serial
// port) that package mux divides.
//
// The host opens exchanges; each has a number, a request, and up to three byte streams. An exchange
// ends with one [Result] from the guest. Many run at once. Frames have the exchange's number.
//
//	Hello    guest to host, first frame: JSON [Greeting]
//	Open     host to guest: JSON [Request]
//	Signal   host to guest: u8, signal number for the command's process group
//	Exit     guest to host: JSON [Result]; nothing of the exchange follows from the guest
package wire

import (
	"encoding/json"
	"time"

	"github.com/ibconduit/conduit/internal/mux"
)

// Version of this protocol. Both ends are built together; it catches an initrd of another build.
const Version = 2

const (
	KindHello = mux.First + iota
	KindOpen
	KindSignal
	KindExit
)

// Streams of an exchange.
type Streams struct{ In, Out, Err *mux.Stream }

// NewStreams are those of an exchange, on either side.
func NewStreams(ch *mux.Channel, id uint32) Streams {
	return Streams{ch.Stream(4 * id), ch.Stream(4*id + 1), ch.Stream(4*id + 2)}
}

// Close ends them with their exchange.
func (s Streams) Close() {
	s.In.Close()
	s.Out.Close()
	s.Err.Close()
}

// SendJSON sends a frame whose body is v.
func SendJSON(ch *mux.Channel, kind mux.Kind, id uint32, v any) error {
	b, err := json.Marshal(v)
	if err == nil {
		ch.Send(kind, id, b)
	}
	return err
}

// Operations of a [Request].
const (
	OpSetup = "setup" // build the guest's world as Request.Setup says
	OpExec  = "exec"  // run a command
	OpFetch = "fetch" // stdout is a tar of Request.Argv, paths that do not exist are left out
	OpDmesg = "dmesg" // stdout is the kernel's log
	OpLink  = "link"  // Request.Link; stdout is JSON [LinkStats]
)

// Greeting is what the agent says when it is up.
type Greeting struct {
	Version int
	Kernel  string
}

// Request opens an exchange.
type Request struct {
	Op      string
	Argv    []string `json:",omitempty"`
	Env     []string `json:",omitempty"`
	Dir     string   `json:",omitempty"`
	NoStdin bool     `json:",omitempty"` // stdin is /dev/null
	// Memlock is RLIMIT_MEMLOCK in bytes when positive; CAP_IPC_LOCK is then taken away, which
	// would lift it.
	Memlock int64  `json:",omitempty"`
	Setup   *Setup `json:",omitempty"`
	Link    *Link  `json:",omitempty"`
}

// Setup describes the world that the agent builds before the first command.
type Setup struct {
	Hostname  string
	Hosts     []string // lines of /etc/hosts
	Shares    []Share  // host directories that are writable in the guest
	RDMA      bool     // load the drivers and make rxe0
	LAN       string   // address with prefix of eth0; empty: a veth pair inside the guest
	Ports     []Port   // of a LAN: the cards, one for each other guest
	MTU       int
	HugePages int // 2 MiB pages
	SwapMB    int // of the first disk, MiB, to be used as swap space
}

// Share is a 9p export of a host directory, mounted at the same path.
type Share struct{ Tag, Path string }

// Port is a card of a guest.
type Port struct{ Name, MAC string }

// Link names a link by its card, and how frames are to fare that leave by it.
type Link struct {
	Port   string
	Change bool    // else only the counters are read
	Loss   float64 // fraction of the frames
	Delay  time.Duration
}

// LinkStats counts frames.
type LinkStats struct{ Sent, Lost uint64 }

// Result ends an exchange.
type Result struct {
	Code   int    // exit code; 128+n when signal n ended the command
	Signal int    `json:",omitempty"`
	Err    string `json:",omitempty"` // why the request could not be carried out
}
