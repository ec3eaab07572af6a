package conduit

import (
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/bootstrap"
	"github.com/ibconduit/conduit/cache"
	"github.com/ibconduit/conduit/memevents"
	"github.com/ibconduit/conduit/regcache"
	"github.com/ibconduit/conduit/segment"
)

// Fabrics that Config.Fabric names.
const (
	FabricAuto = "auto" // shared memory within a host, verbs between hosts
	FabricIBV  = "ibv"  // verbs to every rank, also of this host
	FabricSHM  = "shm"  // shared memory to every rank; all must be on one host
)

// Config says how to join a job. The zero value is useful. Variables of the
// environment named below override a zero field, never a set one.
type Config struct {
	// SegmentSize is this rank's segment in bytes, from 1 up; ranks may differ. Default (0):
	// IBCONDUIT_SEGMENT_SIZE (bytes, or with a suffix K, M, G, T; 0 is a rank without a segment), else
	// 64 MiB.
	SegmentSize int64
	// SegmentShare, between 0 and 1, gives the size as a share of the memory
	// this process may use instead, over verbs of what it may lock beside its buffers. Ranks of a host
	// count together: divide by their number. Default: 0, use SegmentSize.
	SegmentShare float64
	// HeapSize is how many bytes of each segment the shared heaps have (Alloc, NewArray and the like),
	// rounded up to pages of 4 KiB, or HeapAll. It lies at the segment's begin, see Info.Shared, and
	// is equal on all ranks; Join checks it. Default (0): IBCONDUIT_HEAP_SIZE (bytes, with a suffix K,
	// M, G, T, or "all"), else none: then nothing is made for them.
	HeapSize int64
	// HeapFirstTouch has each rank touch new pages of its heap, so that they lie at its NUMA node.
	HeapFirstTouch bool
	// SymmetricSize is the same for SymmetricAlloc. Default (0): IBCONDUIT_SYMMETRIC_SIZE, else none.
	SymmetricSize int64
	// Shared is the static shared data, the same on all ranks; Join checks it. Default: DefaultShared.
	Shared *SharedTable
	// HugePages for the segment. Default: when they are available.
	HugePages segment.Pages

	// Fabric is FabricAuto, FabricIBV or FabricSHM. Default: IBCONDUIT_FABRIC,
	// else FabricAuto.
	Fabric string
	// Device is the verbs device. Default: IBCONDUIT_DEVICE, else the first
	// with an active port.
	Device string
	// Port of the device, from 1. Default: IBCONDUIT_PORT, else the first
	// active one.
	Port int
	// GID is a GID table index in decimal, or "auto". Default: IBCONDUIT_GID,
	// else "auto": RoCEv2 over IPv4, then over IPv6.
	GID string
	// Workers is how many workers can be open at a time over verbs (each has
	// its own queue pairs). Range 1 to 1024. Default: IBCONDUIT_WORKERS, else
	// GOMAXPROCS, at least 2 and at most 8. Over shared memory there is no
	// limit. It must be equal on all ranks; Join checks it.
	Workers int
	// QueueDepth is how many operations a worker keeps in flight to one peer
	// over verbs. Range 4 to 8192. Default: IBCONDUIT_QUEUE_DEPTH, else 128.
	QueueDepth int
	// ZeroCopyMin is from how many bytes on a put or get over verbs moves the program's own memory,
	// what lies outside the segment, without a copy: it is registered, and the registration is kept
	// while nothing changes the memory. Shorter ones are copied through buffers that are registered
	// for good. In bytes, from 1 up (copies for other reasons, of 2 KiB and less, stay); -1:
	// never. Default: IBCONDUIT_ZEROCOPY_MIN (bytes, with a suffix K, M, G, T, or "never"), else a
	// measured crossover, which is larger where registrations cannot be kept. Job.Registrations says
	// which holds.
	ZeroCopyMin int64
	// BufferOrigin says where that memory comes from. The zero value, regcache.Any, is never wrong;
	// other values let registrations be kept where userfaultfd is forbidden, some (regcache.GoHeap,
	// regcache.Mapped) save a look-up its system call of 0.3 us, and wrong ones lose data. Default:
	// regcache.Any.
	BufferOrigin regcache.Origin

	// Handlers are the active messages of the job, the same on all ranks; Join checks it. They may run
	// as soon as all ranks are together, which may be before Join has returned here. Default:
	// am.Default, which am.Handle fills. A job with an empty table when it is joined has no messages,
	// and makes nothing for them. With several ranks in one process (RunLocal) a handler learns from
	// Call.Endpoint().Rank() where it runs.
	Handlers *am.Table
	// MessageEndpoints is how many endpoints messages have on each network: workers share them in
	// turn, endpoint k of a rank exchanges messages with endpoint k of the others. Each has its own
	// lock, goroutine, and buffers, 2 MiB by default. Range 1 to 64, equal on all ranks; Join checks
	// it. Default: IBCONDUIT_MESSAGE_ENDPOINTS, else GOMAXPROCS, at most 4.
	MessageEndpoints int
	// Messages are the parameters of each endpoint: buffers, largest payload, times. Join fills in
	// Rank, Size, Table, Segment, SegmentOffset, SegmentSize, OnClosed, Sharing and Fencer, which must
	// be unset. Credits, MaxMedium and Flow must be equal on all ranks; Join checks it.
	Messages am.Config
	// KeepGOMAXPROCS has Join leave GOMAXPROCS at 1. By default Join of several ranks makes it 2,
	// after the defaults of Workers and MessageEndpoints, so that messages are served while the
	// program computes: with 1 they wait until the runtime preempts it, 20 to 50 ms. It stays 2
	// after Close, and Go no longer updates it by itself (runtime.GOMAXPROCS). Where the environment
	// has GOMAXPROCS Join leaves it alone. Default: IBCONDUIT_KEEP_GOMAXPROCS (1 or 0), else false.
	KeepGOMAXPROCS bool
	// Keepalive is after how long without traffic the connections of messages are tried over verbs, so
	// that the death of a host is noticed: at most twice this and the time of the device's retries
	// later. Negative: never. Default: IBCONDUIT_KEEPALIVE (a Go duration), else 5 s.
	Keepalive time.Duration
	// EagerPeers is to how many other ranks, the nearest by number, each worker is connected over
	// verbs from the start. To another it connects with the first operation, which waits for that, as
	// long as Worker.SetContext allows. Range to 65535, equal on all ranks; Join checks it. Negative:
	// none. Default: IBCONDUIT_EAGER_PEERS, else 64.
	EagerPeers int
	// MaxConnections is above how many connections to other ranks a message endpoint closes idle ones
	// over verbs, those that were not used for longest first; the next message opens them again, and
	// Keepalive does not try them meanwhile. It is exceeded while all are in use. It is also how many
	// connections a worker keeps beside EagerPeers': for one more it closes the one not used
	// for longest, and waits until nothing is in flight on it. Negative: no limit. Range to 1048576.
	// Default: IBCONDUIT_MAX_CONNECTIONS, else 512 of a worker and no limit of an endpoint.
	MaxConnections int
	// ConnectAll has each message endpoint begin to connect to all ranks over verbs when it is opened,
	// in Join, rather than to each with the first message. Join does not wait for it. Default:
	// IBCONDUIT_CONNECT_ALL (1 or 0), else false.
	ConnectAll bool
	// Latency has the job measure how long puts, gets, atomics and flushes take (Latencies), some
	// 100 ns each. Memory of other ranks that is mapped here is then reached through a lane, not by
	// loads and stores, or nothing would be measured there. Not measured: operations of a chain, a
	// batch or a cache, and those that only Flush waits for. It may differ between ranks. Default:
	// IBCONDUIT_LATENCY (1 or 0), else false.
	Latency bool

	// Cache has each worker keep data of other ranks between acquire and release (package cache): puts
	// then complete with Worker.Flush only, and gets may be as old as the last acquire. Begin,
	// Size and Region must be unset: Join fills them in. It may differ between ranks. Default (nil):
	// IBCONDUIT_CACHE, else no cache.
	Cache *cache.Config

	// Teams is how many teams (Job.Team().Split) a rank can be in at a time, with the team of all.
	// Each takes some 896 KiB of each rank's memory, which a device pins, and 40 bytes a rank of the
	// job. Range 1 to 4096, equal on all ranks; Join checks it. Default: 4.
	Teams int
	// Collectives sizes the operations on data of teams; its zero value has the defaults.
	Collectives Collectives

	together    *together // of RunLocal: all ranks are in this process
	defaultSize bool      // SegmentSize is the default: nobody has asked for that much

	// Memory bounds the memory that communication takes for a time. Default: nothing does.
	Memory MemoryConfig

	// JoinTimeout bounds Join, which may take 5 s more to learn from the others which rank is missing.
	// Default: IBCONDUIT_JOIN_TIMEOUT (a Go duration), else 60 s.
	JoinTimeout time.Duration
	// CloseTimeout bounds how long Close waits, half of it at most for messages of this rank that have
	// not ended, a quarter for those that it sends until all ranks have called Close, the rest for the
	// other ranks and for what they have sent. Where Close runs a handler itself that hangs, each may
	// take an eighth longer, a second at most; Messages.CloseAfter comes after it. Default: 10 s.
	CloseTimeout time.Duration

	// Bootstrap overrides the launcher that Join would find. Join takes
	// ownership and closes it.
	Bootstrap bootstrap.Bootstrap
	// Logger gets one line per decision at Info and one per surprise at Warn.
	// Default: none, or stderr when IBCONDUIT_LOG is debug, info, warn or error.
	Logger *slog.Logger
	// Getenv looks up variables. Default: os.LookupEnv.
	Getenv func(key string) (string, bool)

	parts []func(*Config) needs // nil, but in tests: parts
}

const (
	defaultSegment      = 64 << 20
	defaultQueueDepth   = 128
	defaultJoinTimeout  = 60 * time.Second
	defaultCloseTimeout = 10 * time.Second
	defaultKeepalive    = 5 * time.Second
	defaultTeams        = 4
	maxTeams            = 4096
	maxPort             = 255
	maxWorkers          = 1024
	minQueueDepth       = 4
	maxQueueDepth       = 8192
	maxMessageEndpoints = 64
	maxConnections      = 1 << 20 // as many as there are ranks
	defaultEagerPeers   = 64
	maxEagerPeers       = 1<<16 - 1
)

const (
	wantFabric = "auto, ibv or shm"
	wantGID    = `a GID table index or "auto"`
)

func isFabric(s string) bool {
	switch strings.ToLower(s) {
	case FabricAuto, FabricIBV, FabricSHM:
		return true
	}
	return false
}

func isGID(s string) bool {
	n, err := strconv.Atoi(s)
	return s == "auto" || err == nil && n >= 0
}

// ConfigError says which field, or which variable of the environment, is wrong.
type ConfigError struct {
	Field string // "SegmentSize", "IBCONDUIT_FABRIC"
	Value string
	Want  string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("conduit: %s is %s, want %s", e.Field, e.Value, e.Want)
}

// withDefaults validates the configuration and fills in zeros.
func (c Config) withDefaults() (Config, error) {
	if c.Getenv == nil {
		c.Getenv = os.LookupEnv
	}
	if c.parts == nil {
		c.parts = parts
	}
	env := &environment{lookup: c.Getenv}
	if c.SegmentSize == 0 && c.SegmentShare == 0 {
		c.SegmentSize = env.bytes("IBCONDUIT_SEGMENT_SIZE", defaultSegment)
		c.defaultSize = env.str("IBCONDUIT_SEGMENT_SIZE", "") == ""
	}
	c.heapDefaults(env)
	c.Memory.defaults(env)
	c.cacheDefaults(env)
	if c.Fabric == "" {
		c.Fabric = env.checked("IBCONDUIT_FABRIC", FabricAuto, isFabric, wantFabric)
	}
	c.Fabric = strings.ToLower(c.Fabric)
	if c.Device == "" {
		c.Device = env.str("IBCONDUIT_DEVICE", "")
	}
	if c.GID == "" {
		c.GID = env.checked("IBCONDUIT_GID", "auto", isGID, wantGID)
	}
	if c.Port == 0 {
		c.Port = env.integer("IBCONDUIT_PORT", 0, 1, maxPort)
	}
	if c.Workers == 0 {
		c.Workers = env.integer("IBCONDUIT_WORKERS", min(max(runtime.GOMAXPROCS(0), 2), 8), 1, maxWorkers)
	}
	if c.Teams == 0 {
		c.Teams = defaultTeams
	}
	if c.QueueDepth == 0 {
		c.QueueDepth = env.integer("IBCONDUIT_QUEUE_DEPTH", defaultQueueDepth, minQueueDepth, maxQueueDepth)
	}
	if c.ZeroCopyMin == 0 {
		c.ZeroCopyMin = env.threshold("IBCONDUIT_ZEROCOPY_MIN")
	}
	for _, v := range memevents.Variables() { // read there, wanted here in time
		env.checked(v.Name, "", v.Valid, v.Want)
	}
	env.checked(regcache.Env, "", regcache.ValidEnv, regcache.WantEnv)
	if c.Handlers == nil {
		c.Handlers = am.Default
	}
	if c.MessageEndpoints == 0 {
		c.MessageEndpoints = env.integer("IBCONDUIT_MESSAGE_ENDPOINTS", min(runtime.GOMAXPROCS(0), 4), 1, maxMessageEndpoints)
	}
	if c.Keepalive == 0 {
		c.Keepalive = env.duration("IBCONDUIT_KEEPALIVE", defaultKeepalive)
	}
	if c.EagerPeers == 0 {
		c.EagerPeers = env.integer("IBCONDUIT_EAGER_PEERS", defaultEagerPeers, 1, maxEagerPeers)
	}
	if c.MaxConnections == 0 {
		c.MaxConnections = env.integer("IBCONDUIT_MAX_CONNECTIONS", 0, 1, maxConnections)
	}
	if !c.ConnectAll {
		c.ConnectAll = env.bit("IBCONDUIT_CONNECT_ALL")
	}
	if !c.KeepGOMAXPROCS {
		c.KeepGOMAXPROCS = env.bit("IBCONDUIT_KEEP_GOMAXPROCS")
	}
	if !c.Latency {
		c.Latency = env.bit("IBCONDUIT_LATENCY")
	}
	if c.JoinTimeout == 0 {
		c.JoinTimeout = env.duration("IBCONDUIT_JOIN_TIMEOUT", defaultJoinTimeout)
	}
	if c.CloseTimeout == 0 {
		c.CloseTimeout = defaultCloseTimeout
	}
	if c.Logger == nil {
		c.Logger = env.logger()
	}
	if env.err != nil {
		return c, env.err
	}
	return c, c.validate()
}

func (c *Config) validate() error {
	bad := func(field string, value any, want string) error {
		return &ConfigError{Field: field, Value: fmt.Sprint(value), Want: want}
	}
	switch {
	case c.SegmentSize < 0:
		return bad("SegmentSize", c.SegmentSize, "1 byte or more, or 0 for the default")
	case !(c.SegmentShare >= 0 && c.SegmentShare <= 1): // NaN too
		return bad("SegmentShare", c.SegmentShare, "a share between 0 and 1")
	case c.SegmentShare > 0 && c.SegmentSize > 0:
		return bad("SegmentShare", c.SegmentShare, "0 when SegmentSize is set")
	case !isFabric(c.Fabric):
		return bad("Fabric", strconv.Quote(c.Fabric), wantFabric)
	case !isGID(c.GID):
		return bad("GID", strconv.Quote(c.GID), wantGID)
	case c.Port < 0 || c.Port > maxPort:
		return bad("Port", c.Port, fmt.Sprintf("0 (automatic) to %d", maxPort))
	case c.Workers < 1 || c.Workers > maxWorkers:
		return bad("Workers", c.Workers, fmt.Sprintf("1 to %d", maxWorkers))
	case c.QueueDepth < minQueueDepth || c.QueueDepth > maxQueueDepth:
		return bad("QueueDepth", c.QueueDepth, fmt.Sprintf("%d to %d", minQueueDepth, maxQueueDepth))
	case c.ZeroCopyMin < -1:
		return bad("ZeroCopyMin", c.ZeroCopyMin, "a number of bytes, 0 (automatic) or -1 (never)")
	case c.BufferOrigin > regcache.Mapped:
		return bad("BufferOrigin", c.BufferOrigin, "one of regcache's origins")
	case c.MessageEndpoints < 1 || c.MessageEndpoints > maxMessageEndpoints:
		return bad("MessageEndpoints", c.MessageEndpoints, fmt.Sprintf("1 to %d", maxMessageEndpoints))
	case c.Messages.Rank != 0 || c.Messages.Size != 0 || c.Messages.Table != nil || c.Messages.Segment != nil ||
		c.Messages.SegmentOffset != 0 || c.Messages.SegmentSize != nil || c.Messages.OnClosed != nil ||
		c.Messages.Sharing != nil || c.Messages.Fencer != nil:
		return bad("Messages", "set in Rank, Size, Table, Segment, SegmentOffset, SegmentSize, OnClosed, Sharing or "+
			"Fencer", "these unset: Join fills them in; handlers go into Handlers")
	case c.EagerPeers > maxEagerPeers:
		return bad("EagerPeers", c.EagerPeers, fmt.Sprintf("1 to %d, 0 (automatic) or negative (none)", maxEagerPeers))
	case c.Handlers.IsLibrary():
		return bad("Handlers", "a table of the library", "one of am.NewTable")
	case c.MaxConnections > maxConnections:
		return bad("MaxConnections", c.MaxConnections, fmt.Sprintf("1 to %d, 0 (automatic) or negative (no limit)",
			maxConnections))
	case c.Teams < 1 || c.Teams > maxTeams:
		return bad("Teams", c.Teams, fmt.Sprintf("1 to %d", maxTeams))
	case c.JoinTimeout < 0:
		return bad("JoinTimeout", c.JoinTimeout, "a positive duration")
	case c.CloseTimeout < 0:
		return bad("CloseTimeout", c.CloseTimeout, "a positive duration")
	}
	if err := c.validateHeaps(); err != nil {
		return err
	}
	if err := c.validateCache(); err != nil {
		return err
	}
	return c.Memory.validate(c)
}

// gidIndex is the configured index, or -1.
func (c *Config) gidIndex() int {
	if n, err := strconv.Atoi(c.GID); err == nil {
		return n
	}
	return -1
}
