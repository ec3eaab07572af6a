package verbs

import "net/netip"

// DeviceInfo describes a device that need not be open.
type DeviceInfo struct{ Name string }

// DeviceAttr holds the limits of a device, read once when it is opened. A limit is an upper bound
// for one resource by itself; many cannot be had together.
type DeviceAttr struct {
	FirmwareVersion string
	Ports           int

	MaxMRSize uint64 // bytes
	MaxMR     int
	MaxPD     int

	MaxQP   int
	MaxQPWR int // work requests per queue
	MaxSGE  int // scatter entries per work request
	MaxCQ   int
	MaxCQE  int // entries per CQ

	// READs and atomics in flight towards this QP as a target (max_qp_rd_atom)
	MaxQPReadAtomic     int
	MaxQPInitReadAtomic int // READs and atomics in flight from this QP (max_qp_init_rd_atom)
	AtomicCap           AtomicCap

	MaxSRQ    int
	MaxSRQWR  int
	MaxSRQSGE int

	NoInline    bool // inline data is switched off (EnvDisable)
	CompVectors int  // interrupts that CQs may be spread over
}

// PortAttr holds the attributes of a port at the moment of the query.
type PortAttr struct {
	Port         int
	State        PortState
	LinkLayer    LinkLayer
	MaxMTU       MTU
	ActiveMTU    MTU
	MaxMsgSize   uint32 // bytes
	LID          uint16
	GIDTableLen  int
	PKeyTableLen int
	ActiveWidth  uint8 // 1: 1x, 2: 4x, 4: 8x, 8: 12x, 16: 2x
	ActiveSpeed  uint8 // 1 SDR, 2 DDR, 4 QDR, 8 FDR10, 16 FDR, 32 EDR, 64 HDR, 128 NDR
	GRHRequired  bool  // IBV_QPF_GRH_REQUIRED: LIDs do not suffice to route here
}

// GIDType says what a GID's packets look like.
type GIDType uint32

const (
	GIDTypeIB     GIDType = 0
	GIDTypeRoCEv1 GIDType = 1 // Ethertype 0x8915, not routable
	GIDTypeRoCEv2 GIDType = 2 // UDP port 4791
)

func (t GIDType) String() string {
	return enumString("GID type", map[int]string{0: "IB", 1: "RoCEv1", 2: "RoCEv2"}, int(t))
}

// GID is a port address of 128 bits, in wire order. RoCEv2's is an IP address, IPv4 mapped.
type GID [16]byte

// Addr returns the GID as an IP address; IPv4-mapped GIDs as IPv4.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// SubnetPrefix returns the upper half.
func (g GID) SubnetPrefix() uint64 { return be64(g[:8]) }

// InterfaceID returns the lower half.
func (g GID) InterfaceID() uint64 { return be64(g[8:]) }

// IsZero reports whether the table entry is empty. An entry with only a subnet prefix is empty too.
func (g GID) IsZero() bool { return g.InterfaceID() == 0 }

// String prints the address as an IP address: 10.0.0.1, fe80::1.
func (g GID) String() string { return g.Addr().String() }

func be64(b []byte) (v uint64) {
	for _, x := range b[:8] {
		v = v<<8 | uint64(x)
	}
	return v
}

// GIDEntry is one entry of a port's GID table.
type GIDEntry struct {
	GID    GID
	Index  int
	Type   GIDType
	Netdev string // the Ethernet interface it belongs to; empty on InfiniBand
}
