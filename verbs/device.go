//go:build linux && cgo

package verbs

/*
#include <stdlib.h>
#include <net/if.h>
#include "ibc_verbs.h"
*/
import "C"

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"unsafe"

	"github.com/ibconduit/conduit/internal/handle"
)

// Devices lists the RDMA devices of this host.
func Devices() ([]DeviceInfo, error) {
	var infos []DeviceInfo
	err := eachDevice("", func(d *C.struct_ibv_device, info DeviceInfo) error {
		infos = append(infos, info)
		return nil
	})
	return infos, err
}

// eachDevice calls f while the list is valid.
func eachDevice(name string, f func(*C.struct_ibv_device, DeviceInfo) error) error {
	if _, err := Library(); err != nil {
		return err
	}
	var n C.int
	list, err := C.ibv_get_device_list(&n)
	if list == nil {
		errno := errnoPtr(err)
		if errno == syscall.ENOSYS || errno == syscall.ENODEV || errno == syscall.ENOENT {
			return nil // the kernel has no RDMA at all: no devices
		}
		return &Error{Op: "ibv_get_device_list", Device: name, Errno: errno,
			Remedy: "may this process read /sys/class/infiniband_verbs and open /dev/infiniband/uverbs*?"}
	}
	defer C.ibv_free_device_list(list)
	for _, d := range unsafe.Slice(list, int(n)) {
		if err := f(d, DeviceInfo{Name: C.GoString(C.ibv_get_device_name(d))}); err != nil {
			return err
		}
	}
	return nil
}

// Context is an open device.
type Context struct {
	object
	info DeviceInfo
	c    *C.struct_ibv_context
	attr DeviceAttr
	reg  *registry
	// destroy ends the event goroutine and closes the device. It has no pointer to the Context.
	destroy func() error
}

// Open opens a device by name and reads its limits. It starts one goroutine, which learns of CQs
// that have overrun until Close.
func Open(name string) (*Context, error) {
	x := &Context{reg: newRegistry()}
	x.object = object{dev: x, kind: "context", name: "context"}
	var others []string
	err := eachDevice(name, func(d *C.struct_ibv_device, info DeviceInfo) error {
		others = append(others, info.Name)
		if info.Name != name {
			return nil
		}
		x.info = info
		c, err := C.ibv_open_device(d)
		if c == nil {
			return &Error{Op: "ibv_open_device", Device: name, Errno: errnoPtr(err),
				Remedy: "may this process open /dev/infiniband/uverbs*? In a container, pass them in"}
		}
		x.c = c
		return nil
	})
	if err != nil {
		return nil, err
	}
	if x.c == nil {
		return nil, unknownDevice(name, others)
	}
	if err := x.queryLimits(); err != nil {
		C.ibv_close_device(x.c)
		return nil, err
	}
	if err := x.startEvents(); err != nil {
		C.ibv_close_device(x.c)
		return nil, err
	}
	x.handle = handle.New(x, "context", name)
	return x, nil
}

func unknownDevice(name string, others []string) error {
	e := &Error{Op: "open", Device: name, Errno: syscall.ENODEV, Err: ErrNoDevice}
	if len(others) == 0 {
		e.Detail = "this host has no RDMA device"
		e.Remedy = "load the driver of the adapter, or make a software device with hack/softroce/setup.sh; " +
			"ibbench doctor says what is missing"
		return e
	}
	e.Detail = "this host has " + strings.Join(others, ", ")
	e.Remedy = "name one of those; ibbench doctor describes them"
	return e
}

func (x *Context) queryLimits() error {
	var c C.struct_ibv_device_attr_ex
	if rc, err := C.ibc_query_device(x.c, &c); rc != 0 {
		return &Error{Op: "ibv_query_device_ex", Device: x.info.Name, Errno: errnoRC(rc, err)}
	}
	o := &c.orig_attr
	x.attr = DeviceAttr{
		FirmwareVersion: C.GoString(&o.fw_ver[0]),
		Ports:           max(int(o.phys_port_cnt), int(c.phys_port_cnt_ex)),
		MaxMRSize:       uint64(o.max_mr_size), MaxMR: int(o.max_mr), MaxPD: int(o.max_pd),
		MaxQP: int(o.max_qp), MaxQPWR: int(o.max_qp_wr), MaxSGE: int(o.max_sge), MaxCQ: int(o.max_cq), MaxCQE: int(o.max_cqe),
		MaxQPReadAtomic: int(o.max_qp_rd_atom), MaxQPInitReadAtomic: int(o.max_qp_init_rd_atom),
		AtomicCap: AtomicCap(o.atomic_cap),
		MaxSRQ:    int(o.max_srq), MaxSRQWR: int(o.max_srq_wr), MaxSRQSGE: int(o.max_srq_sge),
		CompVectors: int(x.c.num_comp_vectors),
	}
	return x.attr.disable(os.Getenv(EnvDisable))
}

// Name returns the device's name, such as "mlx5_0".
func (x *Context) Name() string { return x.info.Name }

// Attr returns the limits of the device as they were when it was opened. They are valid after
// Close, too.
func (x *Context) Attr() DeviceAttr { return x.attr }

// Port reads the attributes of a port; the first port is 1.
func (x *Context) Port(port int) (PortAttr, error) {
	if err := x.use("ibv_query_port"); err != nil {
		return PortAttr{}, err
	}
	defer x.done()
	if port < 1 || port > x.attr.Ports {
		return PortAttr{}, x.fail("ibv_query_port", syscall.EINVAL,
			fmt.Sprintf("port %d of a device with %d", port, x.attr.Ports), "ports are numbered from 1")
	}
	var c C.struct_ibv_port_attr
	if rc, err := C.ibc_query_port(x.c, C.uint8_t(port), &c); rc != 0 {
		return PortAttr{}, x.fail("ibv_query_port", errnoRC(rc, err), fmt.Sprintf("port %d", port), "")
	}
	const grhRequired = 1 // IBV_QPF_GRH_REQUIRED
	return PortAttr{
		Port: port, State: PortState(c.state), LinkLayer: LinkLayer(c.link_layer),
		MaxMTU: MTU(c.max_mtu), ActiveMTU: MTU(c.active_mtu), MaxMsgSize: uint32(c.max_msg_sz), LID: uint16(c.lid),
		GIDTableLen: int(c.gid_tbl_len), PKeyTableLen: int(c.pkey_tbl_len), ActiveWidth: uint8(c.active_width),
		ActiveSpeed: uint8(c.active_speed),
		GRHRequired: c.flags&grhRequired != 0,
	}, nil
}

// GIDs lists the entries of a port's GID table that are not empty.
func (x *Context) GIDs(port int) ([]GIDEntry, error) {
	p, err := x.Port(port)
	if err != nil {
		return nil, err
	}
	if err := x.use("ibv_query_gid_table"); err != nil {
		return nil, err
	}
	defer x.done()
	// The call returns the tables of all ports.
	table := make([]C.struct_ibv_gid_entry, max(p.GIDTableLen, 1)*x.attr.Ports)
	var n C.size_t
	switch rc, err := C.ibc_query_gids(x.c, &table[0], C.size_t(len(table)), &n); {
	case rc == C.int(syscall.ENOSYS):
		return x.queryGIDs(&p)
	case rc != 0:
		return nil, x.fail("ibv_query_gid_table", errnoRC(rc, err), fmt.Sprintf("port %d", port), "")
	}
	var gids []GIDEntry
	for _, e := range table[:n] {
		if int(e.port_num) == port {
			gids = append(gids, GIDEntry{GID: GID(e.gid), Index: int(e.gid_index), Type: GIDType(e.gid_type),
				Netdev: netdev(uint32(e.ndev_ifindex))})
		}
	}
	return gids, nil
}

// queryGIDs reads the entries one by one, and their kinds from the kernel: before rdma-core 32
// the library has no call for a table.
func (x *Context) queryGIDs(p *PortAttr) ([]GIDEntry, error) {
	var gids []GIDEntry
	for i := range p.GIDTableLen {
		var g GID
		if rc, err := C.ibv_query_gid(x.c, C.uint8_t(p.Port), C.int(i), (*C.union_ibv_gid)(&g)); rc != 0 {
			return nil, x.fail("ibv_query_gid", errnoRC(rc, err), fmt.Sprintf("port %d index %d", p.Port, i), "")
		}
		if g.IsZero() {
			continue
		}
		if e, ok := gidAttrs(sysClass, x.info.Name, p, i); ok {
			e.GID = g
			gids = append(gids, e)
		}
	}
	return gids, nil
}

func netdev(ifindex uint32) string {
	var buf [C.IF_NAMESIZE]C.char
	if ifindex == 0 || C.if_indextoname(C.uint(ifindex), &buf[0]) == nil {
		return ""
	}
	return C.GoString(&buf[0])
}

// PKeys returns a port's P_Key table. Zeros are empty places.
func (x *Context) PKeys(port int) ([]uint16, error) {
	p, err := x.Port(port)
	if err != nil {
		return nil, err
	}
	if err := x.use("ibv_query_pkey"); err != nil {
		return nil, err
	}
	defer x.done()
	keys := make([]uint16, p.PKeyTableLen)
	for i := range keys {
		var k C.__be16
		if rc, err := C.ibv_query_pkey(x.c, C.uint8_t(port), C.int(i), &k); rc != 0 {
			return nil, x.fail("ibv_query_pkey", errnoRC(rc, err), fmt.Sprintf("port %d index %d", port, i), "")
		}
		b := (*[2]byte)(unsafe.Pointer(&k))
		keys[i] = uint16(b[0])<<8 | uint16(b[1])
	}
	return keys, nil
}

// Close closes the device. It is refused with ErrBusy while objects made on it are open. It ends
// the goroutine that takes events.
func (x *Context) Close() error { return x.close(x.destroy) }

// GetForkStatus says whether a fork without exec is safe for registered memory. Starting programs
// with os/exec always is: Go's fork shares the parent's memory until exec. A library too old to say
// counts as one without the protection switched on; without a library nothing is registered.
func GetForkStatus() ForkStatus {
	if _, err := Library(); err != nil {
		return ForkUnneeded
	}
	if status := C.ibc_fork_status(); status >= 0 {
		return ForkStatus(status)
	}
	return ForkDisabled
}

// InitFork makes forks without exec safe on kernels that need it, at the price of one madvise per
// registration. C libraries in the process may fork so; Go does not. It must be called before the
// first registration, and does nothing where GetForkStatus says ForkUnneeded.
func InitFork() error {
	if GetForkStatus() != ForkDisabled {
		return nil
	}
	if rc := C.ibc_fork_init(); rc != 0 {
		return &Error{Op: "ibv_fork_init", Errno: syscall.Errno(rc), Remedy: "call it before anything is registered"}
	}
	return nil
}
