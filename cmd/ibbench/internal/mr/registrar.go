package mr

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/machine"
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/regcache"
)

// Registrar is a protection domain of a device, or registers nothing.
type Registrar struct {
	regcache.Registrar
	Device *report.Device // nil: it registers nothing
	Why    string         // it is this one
	Close  func() error
}

// Name is the label mr.registrar.
func (r *Registrar) Name() string {
	if r.Device == nil {
		return report.Fake
	}
	return r.Device.Name
}

// Open finds the registrar for an operation. Without need a machine without a usable device gets
// the fake.
func Open(device, gid string, fake, need bool) (*Registrar, error) {
	if fake {
		return newFake("asked for"), nil
	}
	d, why, err := machine.FindDevice(device, gid)
	if err != nil {
		if need || device != "" {
			return nil, fmt.Errorf("no device to register with: %w; ibbench doctor says what to do, and hack/softroce/vm run -- ibbench ... measures on Soft-RoCE in a VM", err)
		}
		return newFake(fmt.Sprintf("no usable RDMA device (%v)", err)), nil
	}
	r := &Registrar{Device: d, Why: fmt.Sprintf("device %s (%s)", d.Name, why)}
	r.Registrar, r.Close, err = openDomain(d.Name)
	return r, err
}

// fake gives out keys and registers nothing.
type fake struct {
	mu   sync.Mutex
	next uint32
}

func newFake(why string) *Registrar {
	return &Registrar{Registrar: &fake{}, Why: "a registrar that registers nothing: " + why,
		Close: func() error { return nil }}
}

func (f *fake) Register(uintptr, uint64, regcache.Access) (regcache.MR, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next++
	return fakeMR(f.next), nil
}

type fakeMR uint32

func (m fakeMR) LKey() uint32 { return uint32(m) }
func (m fakeMR) RKey() uint32 { return uint32(m) }
func (m fakeMR) Close() error { return nil }

// witness notes which page each registration was made of. A page carries its number in its first
// word.
type witness struct {
	regcache.Registrar
	mu    sync.Mutex
	pages map[uint32]uint64 // by key
}

func (w *witness) Register(addr uintptr, n uint64, access regcache.Access) (regcache.MR, error) {
	mr, err := w.Registrar.Register(addr, n, access)
	if err == nil {
		w.mu.Lock()
		w.pages[mr.RKey()] = *(*uint64)(pointer(addr))
		w.mu.Unlock()
		return witnessed{mr, w}, nil
	}
	return nil, err
}

// page is the number of the page that was registered with a key.
func (w *witness) page(key uint32) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pages[key]
}

type witnessed struct {
	regcache.MR
	w *witness
}

func (m witnessed) Close() error {
	m.w.mu.Lock()
	delete(m.w.pages, m.RKey())
	m.w.mu.Unlock()
	return m.MR.Close()
}

// pointer is one to memory that Go did not allocate.
func pointer(a uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&a)) }
