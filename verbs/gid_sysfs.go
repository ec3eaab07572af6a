package verbs

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// gidAttrs reads from sysfs what kind of GID an entry of a port's table is, and of which interface
// (Documentation/ABI/stable/sysfs-class-infiniband, gid_attrs). It reports false where the kernel
// says nothing: the entry has become empty since it was read.
func gidAttrs(root, device string, p *PortAttr, index int) (GIDEntry, bool) {
	dir := filepath.Join(root, device, "ports", strconv.Itoa(p.Port), "gid_attrs")
	kind, err := os.ReadFile(filepath.Join(dir, "types", strconv.Itoa(index)))
	if err != nil {
		return GIDEntry{}, false
	}
	e := GIDEntry{Index: index, Type: GIDTypeRoCEv1}
	switch {
	case strings.TrimSpace(string(kind)) == "RoCE v2":
		e.Type = GIDTypeRoCEv2
	case p.LinkLayer != LinkEthernet: // "IB/RoCE v1" stands for both
		e.Type = GIDTypeIB
	}
	// InfiniBand's have no interface; reading is an error then.
	if netdev, err := os.ReadFile(filepath.Join(dir, "ndevs", strconv.Itoa(index))); err == nil {
		e.Netdev = strings.TrimSpace(string(netdev))
	}
	return e, true
}
