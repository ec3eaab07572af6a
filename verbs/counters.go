package verbs

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// sysClass is where the kernel shows RDMA devices
// (Documentation/ABI/stable/sysfs-class-infiniband).
const sysClass = "/sys/class/infiniband"

// PortCounters reads the counters that the kernel and the driver keep of a port: hw_counters, such
// as rxe's sent_pkts and rcvd_rnr_err, and the port counters of the IBTA, such as port_rcv_errors.
// Which there are depends on the driver; a counter that cannot be read is left out, and a name in
// both places is the driver's. The kernel renews hw_counters only when they are older than
// hw_counters/lifespan, 10 ms by default. A port without any gives an empty map; an unknown device
// or port is ErrNoDevice.
func PortCounters(device string, port int) (map[string]uint64, error) {
	return portCounters(sysClass, device, port)
}

func portCounters(root, device string, port int) (map[string]uint64, error) {
	dir := filepath.Join(root, device, "ports", strconv.Itoa(port))
	if device == "" || device != filepath.Base(device) {
		return nil, &Error{Op: "read port counters", Device: device, Err: ErrNoDevice}
	}
	if _, err := os.Stat(dir); err != nil {
		return nil, &Error{Op: "read port counters", Device: device, Errno: errnoOf(err), Err: ErrNoDevice,
			Detail: fmt.Sprintf("port %d: %s is missing", port, dir)}
	}
	out := map[string]uint64{}
	for _, sub := range []string{"counters", "hw_counters"} {
		files, _ := os.ReadDir(filepath.Join(dir, sub)) // either may be missing
		for _, f := range files {
			b, err := os.ReadFile(filepath.Join(dir, sub, f.Name()))
			if err != nil {
				continue
			}
			// lifespan, in ms, is a setting.
			if v, err := strconv.ParseUint(strings.TrimSpace(string(b)), 0, 64); err == nil && f.Name() != "lifespan" {
				out[f.Name()] = v
			}
		}
	}
	return out, nil
}

// PortCounter reads one of them, by name, without reading the others. One that the driver does not
// keep is an error.
func PortCounter(device string, port int, name string) (uint64, error) {
	return portCounter(sysClass, device, port, name)
}

func portCounter(root, device string, port int, name string) (uint64, error) {
	const op = "read port counter"
	if device == "" || device != filepath.Base(device) || name == "" || name != filepath.Base(name) {
		return 0, &Error{Op: op, Device: device, Err: ErrNoDevice, Detail: name}
	}
	var err error
	for _, sub := range []string{"hw_counters", "counters"} {
		var b []byte
		if b, err = os.ReadFile(filepath.Join(root, device, "ports", strconv.Itoa(port), sub, name)); err != nil {
			continue
		}
		return strconv.ParseUint(strings.TrimSpace(string(b)), 0, 64)
	}
	return 0, &Error{Op: op, Device: device, Errno: errnoOf(err), Detail: fmt.Sprintf("port %d, %s", port, name)}
}
