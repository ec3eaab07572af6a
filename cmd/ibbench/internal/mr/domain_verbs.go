//go:build linux && cgo

package mr

import (
	"errors"

	"github.com/ibconduit/conduit/regcache"
	"github.com/ibconduit/conduit/verbs"
)

// domain is a protection domain as a registrar.
type domain struct{ *verbs.PD }

func (d domain) Register(addr uintptr, n uint64, access regcache.Access) (regcache.MR, error) {
	mr, err := d.PD.Register(pointer(addr), n, verbs.Access(access))
	if err != nil {
		return nil, err
	}
	return mr, nil
}

func openDomain(device string) (regcache.Registrar, func() error, error) {
	x, err := verbs.Open(device)
	if err != nil {
		return nil, nil, err
	}
	pd, err := x.AllocPD()
	if err != nil {
		return nil, nil, errors.Join(err, x.Close())
	}
	return domain{pd}, func() error { return errors.Join(pd.Close(), x.Close()) }, nil
}
