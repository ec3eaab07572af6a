package metrics

import (
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ibconduit/conduit/internal/rdmatest"
	"github.com/ibconduit/conduit/verbs"
)

func TestPortCountersComeOverNetlinkToo(t *testing.T) {
	dev := rdmatest.Device(t)
	link, err := netlink.RdmaLinkByName(dev)
	if err != nil {
		t.Fatal(err)
	}
	stat, err := netlink.RdmaPortStatisticList(link, 1)
	if err != nil || len(stat.Statistics) == 0 {
		t.Fatalf("no counters over netlink: %v, %v", stat, err)
	}
	merged, err := readPort(dev, 1)
	if err != nil {
		t.Fatal(err)
	}
	sysfs, err := verbs.PortCounters(dev, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, names := range []map[string]uint64{stat.Statistics, sysfs} {
		for name := range names {
			if _, ok := merged[name]; !ok {
				t.Errorf("%s is missing", name)
			}
		}
	}
	for name, v := range stat.Statistics {
		if merged[name] < v {
			t.Errorf("%s went from %d back to %d", name, v, merged[name])
		}
	}
}
