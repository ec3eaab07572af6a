package machine

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Software reports whether a verbs device is emulated: by the kernel as Soft-RoCE
// (rxe) or Soft-iWARP (siw), which has no parent in sysfs, and is
// named after its driver by custom; or in user space, as hack/softverbs.
func Software(name string) bool {
	if strings.HasPrefix(name, "rxe") || strings.HasPrefix(name, "siw") {
		return true
	}
	dir := filepath.Join("/sys/class/infiniband", name)
	if _, err := os.Stat(dir); err != nil {
		return false
	}
	if b, err := os.ReadFile(filepath.Join(dir, "hca_type")); err == nil && strings.TrimSpace(string(b)) == "softverbs" {
		return true
	}
	_, err := os.Stat(filepath.Join(dir, "device"))
	return os.IsNotExist(err)
}

// numaNode of a device, -1 without one.
func numaNode(name string) int {
	b, err := os.ReadFile(filepath.Join("/sys/class/infiniband", name, "device/numa_node"))
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return -1
	}
	return n
}

// parseGID reads the index of --gid; -1 is automatic.
func parseGID(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return -1
	}
	return n
}
