package segment

// Plan is a segment that fits under the limits, and is not mapped yet: a rank knows what it will
// take of its host's memory, and can inform the others there, before any of it is taken.
type Plan struct {
	c       Config
	huge    *extent // on huge pages, which Map tries first; nil: it does not
	base    *extent // on base pages; nil: not on these, baseErr says why
	baseErr error
	raise   uint64 // of RLIMIT_MEMLOCK, the soft limit that it takes; 0: as it is
	pools   []Pool
	notes   []string
}

// Huge is how many bytes the segment takes of the pool of huge pages, 0 without them.
func (p *Plan) Huge() uint64 { return p.huge.bytes() }

// Base is how many bytes it takes of other memory without huge pages; 0: it needs them.
func (p *Plan) Base() uint64 { return p.base.bytes() }

// Pools are those that the segment may take of, huge pages first.
func (p *Plan) Pools() []Pool { return p.pools }

// WithoutHugePages has Map use base pages, for a reason. The plan must have some.
func (p *Plan) WithoutHugePages(why string) {
	p.huge = nil
	p.notes = append(p.notes, "no huge pages: "+why)
}

func (x *extent) bytes() uint64 {
	if x == nil {
		return 0
	}
	return x.length
}

// PoolKind is what a pool is of.
type PoolKind uint8

// Kinds of pools. They cross the wire: append only.
const (
	PoolHuge    PoolKind = iota + 1 // huge pages that are free
	PoolMachine                     // the machine's available memory
	PoolCommit                      // its commit limit, where overcommit is off
	PoolGroup                       // what a memory group may use
	poolEnd
)

// Valid reports whether there is such a kind.
func (k PoolKind) Valid() bool { return k > 0 && k < poolEnd }

// Pool is memory that processes of a machine share.
type Pool struct {
	ID   uint64 // equal for two processes if it is the same pool, but once in 2^64
	Kind PoolKind
	Room uint64 // bytes that it leaves, as this process has found it
	Path string // of a group
}

// Which names the pool.
func (p Pool) Which() string {
	switch p.Kind {
	case PoolHuge:
		return "the pool of huge pages"
	case PoolCommit:
		return "the commit limit"
	case PoolGroup:
		return "the cgroup memory limit of " + p.Path
	}
	return "the machine's available memory"
}

// Remedy is what to do where it leaves too little.
func (p Pool) Remedy() string {
	switch p.Kind {
	case PoolHuge:
		return "raise vm.nr_hugepages, or do not require huge pages"
	case PoolCommit:
		return "raise vm.overcommit_ratio or set vm.overcommit_memory to 0"
	case PoolGroup:
		return "ask the batch system for more memory, or use a smaller segment"
	}
	return "use a smaller segment or fewer ranks on this host"
}

// Map makes a segment. It checks every limit first; see the package comment.
func Map(c Config) (*Mapping, error) {
	p, err := Prepare(c)
	if err != nil {
		return nil, err
	}
	return p.Map()
}
