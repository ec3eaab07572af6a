//go:build linux && cgo

package ibv

import (
	"errors"
	"fmt"
	"math"

	"github.com/ibconduit/conduit/regcache"
	"github.com/ibconduit/conduit/verbs"
)

// registrar is a protection domain as package regcache wants it. The bits of both kinds of access are
// those of ibv_reg_mr(3).
type registrar struct{ pd *verbs.PD }

func (r registrar) Register(addr uintptr, n uint64, access regcache.Access) (regcache.MR, error) {
	mr, err := r.pd.RegisterRange(addr, n, verbs.Access(access))
	if err != nil {
		return nil, err // not a nil *verbs.MR in an interface
	}
	return mr, nil
}

// openCache makes the registrations of the program's own memory possible, unless the configuration forbids it.
func (n *Network) openCache() (err error) {
	n.zeroMin.Store(math.MaxInt64)
	if n.cfg.ZeroCopyMin < 0 {
		return nil
	}
	n.cache, err = regcache.New(regcache.Config{Registrar: registrar{n.pd}, Origin: n.cfg.Origin})
	if err != nil {
		return err
	}
	n.settleZeroCopy(n.cache.Status())
	return nil
}

// settleZeroCopy decides from which size on the program's own memory is registered: it pays earlier when
// registrations are kept. A size that was asked for holds in either case.
func (n *Network) settleZeroCopy(s regcache.Status) {
	o := s.Origins[n.cfg.Origin]
	kept, single := n.cfg.ZeroCopyMin, n.cfg.ZeroCopyMin
	if kept == 0 {
		kept, single = zeroCopyMin, zeroCopyMinSingle
	}
	if o.Mode == regcache.PerOperation {
		kept = single
	}
	// A shorter put promises that its source is free for reuse when it returns.
	n.zeroMin.Store(max(kept, copyMax+1))
	n.singleMin.Store(single)
	n.log.Info("ibv: the program's own memory", "origin", o.Origin, "registrations", o.Mode, "from bytes", n.zeroMin.Load(), "why", o.Why)
}

// Registrations is the cache of registrations of the program's own memory; nil when it is never registered. It is the
// network's: who is given it does not close it.
func (n *Network) Registrations() *regcache.Cache { return n.cache }

// ZeroCopyMin is from how many bytes on a put or get of the program's own memory goes without a copy; math.MaxInt64: never.
func (n *Network) ZeroCopyMin() int64 { return n.zeroMin.Load() }

// Retest tests again whether all changes of the program's memory are noticed: another library may have replaced
// the hooks since. What is not is registered for each operation from then on. It may be called at any time.
func (n *Network) Retest() (s regcache.Status, ok bool) {
	if n.cache == nil {
		return s, false
	}
	s = n.cache.Retest()
	n.settleZeroCopy(s)
	return s, true
}

// closeCache closes the cache; every endpoint has given its registrations back.
func (n *Network) closeCache() error {
	if n.cache == nil {
		return nil
	}
	if err := n.cache.Close(); err != nil {
		return fmt.Errorf("registrations of the program's own memory: %w", err)
	}
	return nil
}

// fatal reports an error of the cache that no copy may hide: it had a registration of other pages than the addresses.
func fatal(err error) bool { return errors.Is(err, regcache.ErrStale) }
