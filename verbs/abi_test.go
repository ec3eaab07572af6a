//go:build linux && cgo

package verbs

import (
	"debug/dwarf"
	"debug/elf"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

const libraryHeader = "/usr/include/infiniband/verbs.h"

// needHeader skips where libibverbs-dev is not installed: only these tests look at it.
func needHeader(t *testing.T) {
	t.Helper()
	notInVM(t)
	if _, err := os.Stat(libraryHeader); err == nil {
		return
	}
	if os.Getenv("IBCONDUIT_REQUIRE_IBVERBS_DEV") == "1" {
		t.Fatalf("IBCONDUIT_REQUIRE_IBVERBS_DEV=1, and there is no %s (package libibverbs-dev)", libraryHeader)
	}
	t.Skipf("no %s to compare with (package libibverbs-dev)", libraryHeader)
}

// notInVM skips what compiles much: that is slow there, and the same as outside.
func notInVM(t *testing.T) {
	t.Helper()
	if os.Getenv("IBCONDUIT_VM_INDEX") != "" {
		t.Skip("it compiles programs: outside of the VM")
	}
}

func gcc(t *testing.T, args ...string) {
	t.Helper()
	compile(t, "gcc", args...)
}

func compile(t *testing.T, cc string, args ...string) {
	t.Helper()
	if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", cc, strings.Join(args, " "), err, out)
	}
}

// header is what a C header declares, as the compiler lays it out.
type header struct {
	structs map[string]*dwarf.StructType
	enums   map[string]*dwarf.EnumType
	values  map[string]int64 // of all enumerators: in C their names are global
}

// readHeader compiles C text and reads its debugging information.
func readHeader(t *testing.T, cc, text string) header {
	t.Helper()
	c, o := filepath.Join(t.TempDir(), "header.c"), filepath.Join(t.TempDir(), "header.o")
	if err := os.WriteFile(c, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	// A cross compiler takes the library's header from this machine, where it is the same.
	compile(t, cc, "-std=gnu11", "-D_GNU_SOURCE", "-g", "-fno-eliminate-unused-debug-types", "-idirafter", "/usr/include", "-c", "-o", o, c)
	f, err := elf.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d, err := f.DWARF()
	if err != nil {
		t.Fatal(err)
	}
	h := header{map[string]*dwarf.StructType{}, map[string]*dwarf.EnumType{}, map[string]int64{}}
	for r := d.Reader(); ; {
		e, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if e == nil {
			return h
		}
		if e.Tag != dwarf.TagStructType && e.Tag != dwarf.TagUnionType && e.Tag != dwarf.TagEnumerationType {
			continue
		}
		typ, err := d.Type(e.Offset)
		if err != nil {
			t.Fatal(err)
		}
		switch typ := typ.(type) {
		case *dwarf.StructType:
			if !typ.Incomplete && typ.StructName != "" {
				h.structs[typ.StructName] = typ
			}
		case *dwarf.EnumType:
			if typ.EnumName != "" {
				h.enums[typ.EnumName] = typ
			}
			for _, v := range typ.Val {
				h.values[v.Name] = v.Val
			}
		}
	}
}

// plain takes names and qualifiers off a type.
func plain(t dwarf.Type) dwarf.Type {
	for {
		switch x := t.(type) {
		case *dwarf.TypedefType:
			t = x.Type
		case *dwarf.QualType:
			t = x.Type
		default:
			return t
		}
	}
}

// kind describes a type so that equal ones of two headers have equal descriptions.
func kind(t dwarf.Type) string {
	switch x := plain(t).(type) {
	case *dwarf.EnumType:
		return "enum " + x.EnumName
	case *dwarf.StructType:
		return x.Kind + " " + x.StructName
	case *dwarf.PtrType:
		return "*" + kind(x.Type)
	case *dwarf.ArrayType:
		return fmt.Sprintf("[%d]%s", x.Count, kind(x.Type))
	case *dwarf.FuncType:
		var parameters []string
		for _, p := range x.ParamType {
			parameters = append(parameters, kind(p))
		}
		return "func(" + strings.Join(parameters, ", ") + ") " + kind(x.ReturnType)
	case nil:
		return "void"
	default:
		return x.String()
	}
}

// member is a place in a struct.
type member struct {
	offset int64
	kind   string
}

// members lists those of a struct, those of structs and unions without a name among them.
func members(s *dwarf.StructType, prefix string, at int64, out map[string]member) map[string]member {
	for _, f := range s.Field {
		name := prefix + f.Name
		inner, ok := plain(f.Type).(*dwarf.StructType)
		if !ok || inner.StructName != "" {
			out[name] = member{at + f.ByteOffset, kind(f.Type)}
			continue
		}
		if f.Name != "" {
			name += "."
		}
		members(inner, name, at+f.ByteOffset, out)
	}
	return out
}

// Structs that may be larger in the library than here: it makes them itself, or is told the size.
var (
	libraryMakes = []string{"ibv_context", "ibv_pd", "ibv_mr", "ibv_comp_channel", "ibv_cq", "ibv_srq", "ibv_qp"}
	sizeIsTold   = []string{"ibv_port_attr", "ibv_device_attr_ex", "ibv_gid_entry"}
)

// differences compares what is declared here with the library's header.
func differences(ours, theirs header) (bad []string) {
	differ := func(format string, args ...any) { bad = append(bad, fmt.Sprintf(format, args...)) }
	for _, name := range slices.Sorted(maps.Keys(ours.structs)) {
		s, other := ours.structs[name], theirs.structs[name]
		if !strings.HasPrefix(name, "ibv_") && name != "verbs_context" {
			continue // pthread.h's
		}
		if other == nil {
			differ("%s %s: the library has none", s.Kind, name)
			continue
		}
		got, want := members(s, "", 0, map[string]member{}), members(other, "", 0, map[string]member{})
		var shift int64
		if name == "verbs_context" { // newer ones have more in front
			shift = want["context"].offset - got["context"].offset
		}
		for _, m := range slices.Sorted(maps.Keys(got)) {
			g, w := got[m], want[m]
			g.offset += shift
			switch {
			case strings.HasPrefix(m, "unused_"):
			case w.kind == "":
				differ("%s.%s: the library has no such member", name, m)
			case g != w:
				differ("%s.%s: %v here, %v in the library", name, m, g, w)
			}
		}
		switch larger := other.ByteSize > s.ByteSize; {
		case name == "verbs_context", larger && slices.Contains(slices.Concat(libraryMakes, sizeIsTold), name):
		case s.ByteSize != other.ByteSize:
			differ("%s: %d bytes here, %d in the library", name, s.ByteSize, other.ByteSize)
		}
	}
	for name, e := range ours.enums {
		if strings.HasPrefix(name, "ibv_") && theirs.enums[name] == nil {
			differ("enum %s: the library has none", name)
		}
		for _, v := range e.Val {
			if w, ok := theirs.values[v.Name]; strings.HasPrefix(name, "ibv_") && (!ok || w != v.Val) {
				differ("%s: %d here, %d (%t) in the library", v.Name, v.Val, w, ok)
			}
		}
	}
	return bad
}

// sharedStructs are the structs of Go that the C library reads and writes, with its names of their
// fields.
var sharedStructs = []struct {
	goes  any
	name  string
	names string
}{
	{WC{}, "ibv_wc", "wr_id status opcode vendor_err byte_len imm_data qp_num src_qp wc_flags pkey_index slid sl dlid_path_bits"},
	{SendWR{}, "ibv_send_wr", "wr_id next sg_list num_sge opcode send_flags imm_data wr.rdma.remote_addr wr.atomic.compare_add wr.atomic.swap wr.atomic.rkey qp_type.xrc.remote_srqn unused_bind_mw"},
	{RecvWR{}, "ibv_recv_wr", "wr_id next sg_list num_sge"},
	{SGE{}, "ibv_sge", "addr length lkey"},
}

func TestGoLayoutsEqualThoseOfTheCLibrary(t *testing.T) {
	notInVM(t)
	text := must(os.ReadFile("ibc_abi.h"))(t)
	structs := readHeader(t, "gcc", string(text)).structs
	for _, s := range sharedStructs {
		typ, want := reflect.TypeOf(s.goes), members(structs[s.name], "", 0, map[string]member{})
		if uintptr(structs[s.name].ByteSize) != typ.Size() {
			t.Errorf("%s: %d bytes in Go, %d in C", s.name, typ.Size(), structs[s.name].ByteSize)
		}
		for i, name := range strings.Fields(s.names) {
			if c, ok := want[name]; !ok || uintptr(c.offset) != typ.Field(i).Offset {
				t.Errorf("%s.%s: at %d in Go (%s), %+v in C", s.name, name, typ.Field(i).Offset, typ.Field(i).Name, c)
			}
		}
	}
}

const theirHeader = "#include <infiniband/verbs.h>\n"

func TestDeclarationsAreTheLibrarys(t *testing.T) {
	needHeader(t)
	text, err := os.ReadFile("ibc_abi.h")
	if err != nil {
		t.Fatal(err)
	}
	const cross = "aarch64-linux-gnu-gcc"
	if _, err := exec.LookPath(cross); err == nil {
		for _, d := range differences(readHeader(t, cross, string(text)), readHeader(t, cross, theirHeader)) {
			t.Errorf("arm64: %s", d)
		}
	}
	ours, theirs := readHeader(t, "gcc", string(text)), readHeader(t, "gcc", theirHeader)
	if len(ours.structs) < 29 || len(ours.enums) < 10 {
		t.Fatalf("found only %d structs and %d enums in ibc_abi.h", len(ours.structs), len(ours.enums))
	}
	for _, d := range differences(ours, theirs) {
		t.Error(d)
	}
	// Each fault is found.
	for _, fault := range []struct{ old, new, want string }{
		{"uint32_t handle, lkey, rkey;", "uint32_t handle, rkey, lkey;", "ibv_mr.lkey: {"},
		{"unsigned int wc_flags;", "uint64_t wc_flags;", "ibv_wc.wc_flags: {"},
		{"void *unused_create_cq;", "", "ibv_context_ops.poll_cq: {"},
		{"unused_flow_to_xrcd[10]", "unused_flow_to_xrcd[9]", "verbs_context.query_device_ex: {"},
		{"int (*poll_cq)(struct ibv_cq *, int,", "int (*poll_cq)(struct ibv_cq *, long,", "ibv_context_ops.poll_cq: {"},
		{"	uint32_t rate_limit;\n", "", "ibv_qp_attr: "},
		{"phys_state, link_layer", "link_layer, phys_state", "ibv_port_attr.link_layer: {"},
		{"IBV_EVENT_WQ_FATAL = 19", "IBV_EVENT_WQ_FATAL = 18", "IBV_EVENT_WQ_FATAL: 18 here"},
		{"uint32_t remote_qpn, remote_qkey;", "uint32_t remote_qkey, remote_qpn;", "ibv_send_wr.wr.ud.remote_qkey: {"},
	} {
		faulty := strings.Replace(string(text), fault.old, fault.new, 1)
		found := differences(readHeader(t, "gcc", faulty), theirs)
		if faulty == string(text) || !slices.ContainsFunc(found, func(d string) bool { return strings.HasPrefix(d, fault.want) }) {
			t.Errorf("%q in the place of %q is not found: %v", fault.new, fault.old, found)
		}
	}
}

func TestPrototypesAreTheLibrarys(t *testing.T) {
	needHeader(t)
	gcc(t, "-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations", "-fsyntax-only", "testdata/prototypes.c")
}

func TestConstantsAreTheLibrarys(t *testing.T) {
	needHeader(t)
	theirs := readHeader(t, "gcc", theirHeader)
	for name, v := range constants {
		if w, ok := theirs.values[name]; !ok || w != v {
			t.Errorf("%s: %d here, %d (%t) in the library", name, v, w, ok)
		}
	}
}

// constants are the numbers of this package's exported constants, by their names in C.
var constants = map[string]int64{
	"IBV_LINK_LAYER_INFINIBAND": int64(LinkInfiniBand), "IBV_LINK_LAYER_ETHERNET": int64(LinkEthernet),
	"IBV_PORT_DOWN": int64(PortDown), "IBV_PORT_INIT": int64(PortInit), "IBV_PORT_ARMED": int64(PortArmed),
	"IBV_PORT_ACTIVE": int64(PortActive),
	"IBV_MTU_256":     int64(MTU256), "IBV_MTU_512": int64(MTU512), "IBV_MTU_1024": int64(MTU1024), "IBV_MTU_2048": int64(MTU2048), "IBV_MTU_4096": int64(MTU4096),
	"IBV_ATOMIC_NONE": int64(AtomicNone), "IBV_ATOMIC_HCA": int64(AtomicHCA), "IBV_ATOMIC_GLOB": int64(AtomicGlob),
	"IBV_ACCESS_LOCAL_WRITE": int64(AccessLocalWrite), "IBV_ACCESS_REMOTE_WRITE": int64(AccessRemoteWrite), "IBV_ACCESS_REMOTE_READ": int64(AccessRemoteRead),
	"IBV_ACCESS_REMOTE_ATOMIC": int64(AccessRemoteAtomic),
	"IBV_QPT_RC":               int64(RC), "IBV_QPT_UD": int64(UD),
	"IBV_QPS_RESET": int64(StateReset), "IBV_QPS_INIT": int64(StateInit), "IBV_QPS_RTR": int64(StateRTR), "IBV_QPS_RTS": int64(StateRTS),
	"IBV_QPS_SQD": int64(StateSQD), "IBV_QPS_SQE": int64(StateSQE), "IBV_QPS_ERR": int64(StateErr),
	"IBV_FORK_DISABLED": int64(ForkDisabled), "IBV_FORK_ENABLED": int64(ForkEnabled), "IBV_FORK_UNNEEDED": int64(ForkUnneeded),
	"IBV_GID_TYPE_IB": int64(GIDTypeIB), "IBV_GID_TYPE_ROCE_V1": int64(GIDTypeRoCEv1), "IBV_GID_TYPE_ROCE_V2": int64(GIDTypeRoCEv2),
	"IBV_WR_RDMA_WRITE": int64(OpWrite), "IBV_WR_RDMA_WRITE_WITH_IMM": int64(OpWriteImm), "IBV_WR_SEND": int64(OpSend),
	"IBV_WR_RDMA_READ": int64(OpRead), "IBV_WR_ATOMIC_CMP_AND_SWP": int64(OpCompareSwap), "IBV_WR_ATOMIC_FETCH_AND_ADD": int64(OpFetchAdd),
	"IBV_SEND_SIGNALED": int64(Signaled), "IBV_SEND_SOLICITED": int64(Solicited), "IBV_SEND_INLINE": int64(Inline),
	"IBV_WC_GRH":  int64(WCWithGRH),
	"IBV_WC_SEND": int64(WCSend), "IBV_WC_RDMA_WRITE": int64(WCWrite), "IBV_WC_RDMA_READ": int64(WCRead), "IBV_WC_COMP_SWAP": int64(WCCompareSwap),
	"IBV_WC_FETCH_ADD": int64(WCFetchAdd), "IBV_WC_RECV": int64(WCRecv),
	"IBV_WC_SUCCESS": int64(StatusSuccess), "IBV_WC_LOC_LEN_ERR": int64(StatusLocalLength), "IBV_WC_LOC_QP_OP_ERR": int64(StatusLocalQPOp),
	"IBV_WC_LOC_PROT_ERR": int64(StatusLocalProtection), "IBV_WC_WR_FLUSH_ERR": int64(StatusFlushed),
	"IBV_WC_MW_BIND_ERR": int64(StatusMWBind), "IBV_WC_BAD_RESP_ERR": int64(StatusBadResponse), "IBV_WC_LOC_ACCESS_ERR": int64(StatusLocalAccess),
	"IBV_WC_REM_INV_REQ_ERR": int64(StatusRemoteInvalidReq), "IBV_WC_REM_ACCESS_ERR": int64(StatusRemoteAccess), "IBV_WC_REM_OP_ERR": int64(StatusRemoteOp),
	"IBV_WC_RETRY_EXC_ERR": int64(StatusRetryExceeded), "IBV_WC_RNR_RETRY_EXC_ERR": int64(StatusRNRRetryExceeded),

	"IBV_WC_REM_ABORT_ERR": int64(StatusRemoteAborted),
	"IBV_WC_FATAL_ERR":     int64(StatusFatal), "IBV_WC_RESP_TIMEOUT_ERR": int64(StatusResponseTimeout), "IBV_WC_GENERAL_ERR": int64(StatusGeneral),

	"IBV_QP_STATE": int64(AttrState), "IBV_QP_CUR_STATE": int64(AttrCurState), "IBV_QP_ACCESS_FLAGS": int64(AttrAccess),
	"IBV_QP_PKEY_INDEX": int64(AttrPKeyIndex), "IBV_QP_PORT": int64(AttrPort), "IBV_QP_QKEY": int64(AttrQKey), "IBV_QP_AV": int64(AttrAV), "IBV_QP_PATH_MTU": int64(AttrPathMTU),
	"IBV_QP_TIMEOUT": int64(AttrTimeout), "IBV_QP_RETRY_CNT": int64(AttrRetryCount), "IBV_QP_RNR_RETRY": int64(AttrRNRRetry), "IBV_QP_RQ_PSN": int64(AttrRQPSN),
	"IBV_QP_MAX_QP_RD_ATOMIC": int64(AttrMaxReadAtomic), "IBV_QP_MIN_RNR_TIMER": int64(AttrMinRNRTimer), "IBV_QP_SQ_PSN": int64(AttrSQPSN),
	"IBV_QP_MAX_DEST_RD_ATOMIC": int64(AttrMaxDestRdAtomic), "IBV_QP_DEST_QPN": int64(AttrDestQPN),
}
