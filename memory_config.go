package conduit

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"

	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/pagepool"
	"github.com/ibconduit/conduit/internal/transient"
	"github.com/ibconduit/conduit/regcache"
)

// MemoryConfig bounds the memory that communication takes for a time: what fetch sets bring
// ([NewFetchSet]), payloads that other ranks send ([SendPayload]), and buffers of
// collective operations. docs/memory-aware-flow.md has the guarantees, and how to choose.
type MemoryConfig struct {
	// Budget is how much that may be at this rank, its Limit or, following the machine's memory, its
	// Adapt. Ranks may differ. Default: IBCONDUIT_BUDGET (a limit in bytes, with a suffix K, M, G, T,
	// or "adaptive"), else none: then nothing is bounded, and there are no fetch sets.
	Budget flow.BudgetConfig
	// ReceiveSize is how many bytes of each segment are for what other ranks write: the data of
	// FetchFrom and of SendPayload, none of which may be larger, nor what one set fetches so. Of it,
	// Budget.Reserve bytes are for what that serves, half at most where that is -1. Equal on all
	// ranks; Join checks it. Over shared memory it is address space, and memory only while in use;
	// over verbs it is pinned like all of the segment, and counts in addition to the budget. Default
	// (0): IBCONDUIT_RECEIVE_SIZE, else with Fetches or Payloads the Budget's Limit, or its
	// Adapt.Ceiling, or 64 MiB, and its Reserve; without them none.
	ReceiveSize int64
	// Fetches make the data of FetchFrom, by name. All ranks should have the same: a request for one
	// that the rank does not have gets an error. A function is called on a goroutine of its own for
	// each request, which it answers, or keeps to be answered later.
	Fetches map[string]func(*FetchRequest)
	// Payloads take what SendPayload brings, by name, like Fetches. A function is called on a
	// goroutine of its own. It releases the payload, or keeps it for later. Close waits for it.
	Payloads map[string]func(*Payload)
}

const (
	defaultReceive = 64 << 20
	maxReceive     = 1 << 46
	wantReceive    = "0 (automatic) to 2^46 bytes"
)

// defaults fills in zeros.
func (m *MemoryConfig) defaults(env *environment) {
	if reflect.ValueOf(m.Budget).IsZero() {
		switch v := env.str("IBCONDUIT_BUDGET", ""); v {
		case "":
		case "adaptive":
			m.Budget.Adapt = &flow.AdaptConfig{}
		default:
			n, err := ParseBytes(v)
			if err != nil || n == 0 {
				env.fail("IBCONDUIT_BUDGET", v, `a number of bytes from 1 up such as 268435456 or 256M, or "adaptive"`)
			}
			m.Budget.Limit = n
		}
	}
	if m.ReceiveSize == 0 {
		m.ReceiveSize = env.bytes("IBCONDUIT_RECEIVE_SIZE", 0)
	}
	if m.ReceiveSize == 0 && m.on() && len(m.Fetches)+len(m.Payloads) > 0 {
		m.ReceiveSize = defaultReceive
		if a := m.Budget.Adapt; a == nil {
			m.ReceiveSize = m.Budget.Limit
		} else if a.Ceiling > 0 {
			m.ReceiveSize = a.Ceiling
		}
		if n := m.Budget.Reserve; n > 0 {
			m.ReceiveSize += min(n, maxReceive)
		} else if n == -1 {
			m.ReceiveSize += m.ReceiveSize
		}
		m.ReceiveSize = int64(pagepool.Round(uint64(min(max(m.ReceiveSize, 1), maxReceive))))
	}
}

// on reports whether there is a budget.
func (m *MemoryConfig) on() bool { return !reflect.ValueOf(m.Budget).IsZero() }

func (m *MemoryConfig) validate(c *Config) error {
	bad := func(field string, value any, want string) error {
		return &ConfigError{Field: field, Value: fmt.Sprint(value), Want: want}
	}
	switch b := &m.Budget; {
	case m.ReceiveSize < 0 || m.ReceiveSize > maxReceive:
		return bad("Memory.ReceiveSize", m.ReceiveSize, wantReceive)
	case !m.on() && m.ReceiveSize > 0:
		return bad("Memory.ReceiveSize", m.ReceiveSize, "0 in a job without a budget, or set Memory.Budget "+
			"(IBCONDUIT_BUDGET)")
	case !m.on() && len(m.Fetches)+len(m.Payloads) > 0:
		return bad("Memory.Budget", "none", "one, as there are Fetches or Payloads: Limit in bytes or Adapt "+
			"(IBCONDUIT_BUDGET)")
	case m.on() && b.Limit == 0 && b.Adapt == nil:
		return bad("Memory.Budget", "set without Limit and Adapt", "one of them")
	case m.on() && c.BufferOrigin != regcache.Any && c.BufferOrigin != regcache.GoMapped:
		return bad("BufferOrigin", c.BufferOrigin, "regcache.Any or GoMapped in a job with a budget: fetch sets read "+
			"into memory that is mapped and given back")
	}
	if err := distinct("Memory.Fetches", slices.Sorted(maps.Keys(m.Fetches))); err != nil {
		return err
	}
	if err := distinct("Memory.Payloads", slices.Sorted(maps.Keys(m.Payloads))); err != nil {
		return err
	}
	return nil
}

// distinct refuses names that a message could not distinguish.
func distinct(field string, names []string) error {
	seen := map[uint64]string{}
	for _, n := range names {
		if n == "" {
			return &ConfigError{Field: field, Value: strconv.Quote(n), Want: "names that are not empty"}
		}
		if other, taken := seen[transient.Hash(n)]; taken {
			return &ConfigError{Field: field, Value: strconv.Quote(n),
				Want: fmt.Sprintf("another name: it has the hash of %q", other)}
		}
		seen[transient.Hash(n)] = n
	}
	return nil
}

// taken are the hashes of the names of Payloads, ascending; none where they are more than a hello
// has: then other ranks find out for each payload whether it is taken.
func (m *MemoryConfig) taken() []uint64 {
	if len(m.Payloads) > maxPayloads {
		return nil
	}
	var hashes []uint64
	for name, f := range m.Payloads {
		if f != nil { // else it is as if it were not there
			hashes = append(hashes, transient.Hash(name))
		}
	}
	slices.Sort(hashes)
	return hashes
}
