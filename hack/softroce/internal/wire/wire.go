package wire

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
)

const (
	// MaxPayload bounds one frame.
	MaxPayload = 32 << 10
	// Window is how many bytes of one stream may be unacknowledged.
	Window = 256 << 10

	headerLen = 12
	// Version of this protocol. Both ends are built together; it catches an initrd of another
	// build.
	Version = 1
)

// Kind says what a frame is.
type Kind uint8

const (
	KindHello Kind = iota + 1
	KindOpen
	KindData
	KindCredit
	KindSignal
	KindExit
)

// Streams of an exchange.
const (
	Stdin  = 0
	Stdout = 1
	Stderr = 2
)

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

// Frame is one frame as read. Payload is valid until the next read.
type Frame struct {
	Kind    Kind
	ID      uint32
	Payload []byte
}

// Writer sends frames; it is safe for concurrent use.
type Writer struct {
	mu  sync.Mutex
	w   io.Writer
	buf []byte
	err error
}

func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write sends one frame whose payload is the parts in turn.
func (w *Writer) Write(kind Kind, id uint32, parts ...[]byte) error {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	if n > MaxPayload {
		return fmt.Errorf("wire: frame of %d bytes is longer than %d", n, MaxPayload)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	w.buf = append(w.buf[:0], make([]byte, headerLen)...)
	binary.LittleEndian.PutUint32(w.buf, uint32(n))
	binary.LittleEndian.PutUint32(w.buf[4:], id)
	w.buf[8] = byte(kind)
	for _, p := range parts {
		w.buf = append(w.buf, p...)
	}
	_, w.err = w.w.Write(w.buf)
	return w.err
}

// WriteJSON sends a frame whose payload is v.
func (w *Writer) WriteJSON(kind Kind, id uint32, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return w.Write(kind, id, b)
}

// WriteUint32 sends a Signal frame.
func (w *Writer) WriteSignal(id uint32, signal int) error {
	return w.Write(KindSignal, id, binary.LittleEndian.AppendUint32(nil, uint32(signal)))
}

// Reader reads frames.
type Reader struct {
	r   io.Reader
	hdr [headerLen]byte
	buf [MaxPayload]byte
}

func NewReader(r io.Reader) *Reader { return &Reader{r: r} }

// Read returns the next frame. A frame that breaks the format is an error and ends the connection.
func (r *Reader) Read() (Frame, error) {
	if _, err := io.ReadFull(r.r, r.hdr[:]); err != nil {
		return Frame{}, err
	}
	n := binary.LittleEndian.Uint32(r.hdr[:])
	kind := Kind(r.hdr[8])
	if n > MaxPayload || kind < KindHello || kind > KindExit {
		return Frame{}, fmt.Errorf("wire: not a frame: % x", r.hdr[:])
	}
	if _, err := io.ReadFull(r.r, r.buf[:n]); err != nil {
		return Frame{}, io.ErrUnexpectedEOF
	}
	f := Frame{Kind: kind, ID: binary.LittleEndian.Uint32(r.hdr[4:]), Payload: r.buf[:n]}
	switch {
	case (kind == KindData) && n < 1,
		kind == KindCredit && n != 5,
		kind == KindSignal && n != 4:
		return Frame{}, fmt.Errorf("wire: frame of kind %d with %d bytes", kind, n)
	}
	return f, nil
}

// Stream returns the stream and the rest of the payload of a Data frame.
func (f Frame) Stream() (stream int, data []byte) { return int(f.Payload[0]), f.Payload[1:] }

// Credit returns the stream and the count of a Credit frame.
func (f Frame) Credit() (stream int, n int) {
	return int(f.Payload[0]), int(binary.LittleEndian.Uint32(f.Payload[1:]))
}

// Signal returns the number in a Signal frame.
func (f Frame) Signal() int { return int(binary.LittleEndian.Uint32(f.Payload)) }
