package metrics

import (
	"github.com/vishvananda/netlink"

	"github.com/ibconduit/conduit/verbs"
)

// readPort reads a port's counters: the driver's over netlink (RDMA_NLDEV_CMD_STAT_GET in
// include/uapi/rdma/rdma_netlink.h), which are fresh at each call, and the IBTA's from sysfs, where
// also the driver's are on kernels before 5.1, or where netlink is closed to this process.
func readPort(device string, port int) (map[string]uint64, error) {
	counters, err := verbs.PortCounters(device, port)
	if err != nil {
		return nil, err
	}
	link, err := netlink.RdmaLinkByName(device)
	if err != nil {
		return counters, nil
	}
	stat, err := netlink.RdmaPortStatisticList(link, uint32(port))
	if err != nil {
		return counters, nil
	}
	for name, v := range stat.Statistics {
		counters[name] = v
	}
	return counters, nil
}
