package guest

import (
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ibconduit/conduit/hack/softroce/internal/wire"
)

// Addresses of the pair inside one guest. rxe0 sits on the first.
const (
	vethAddr0 = "10.0.0.1/24"
	vethAddr1 = "10.0.0.2/24"
)

func setupNetwork(s *wire.Setup) error {
	// Without duplicate address detection the link-local address, and with it the GID, is usable at
	// once.
	for _, f := range []string{"default", "all"} {
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+f+"/accept_dad", []byte("0"), 0o644)
	}
	if err := linkUp("lo", "", 0); err != nil {
		return err
	}
	netdev, addr := "eth0", s.LAN
	if s.LAN == "" {
		netdev, addr = "veth0", vethAddr0
		pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "veth0", MTU: s.MTU}, PeerName: "veth1"}
		if err := netlink.LinkAdd(pair); err != nil {
			return fmt.Errorf("add veth pair: %w", err)
		}
		if err := linkUp("veth1", vethAddr1, s.MTU); err != nil {
			return err
		}
	}
	if err := joinPorts(s.Ports, s.MTU); err != nil {
		return err
	}
	if err := linkUp(netdev, addr, s.MTU); err != nil {
		return err
	}
	if !s.RDMA {
		return nil
	}
	if err := netlink.RdmaLinkAdd("rxe0", "rxe", netdev); err != nil {
		return fmt.Errorf("add rxe0 on %s: %w (ENOENT means that the crypto layer has no crc32)", netdev, err)
	}
	return waitDevice("rxe0", addr)
}

// waitDevice waits until the port is active, the GID of addr is in its table and the user's device
// file exists: all three come after the link's creation has returned.
func waitDevice(dev, addr string) error {
	ip, _, err := net.ParseCIDR(addr)
	if err != nil {
		return err
	}
	ip4 := ip.To4()
	want := fmt.Sprintf("0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x", ip4[0], ip4[1], ip4[2], ip4[3])
	port := "/sys/class/infiniband/" + dev + "/ports/1/"
	deadline := time.Now().Add(30 * time.Second)
	for {
		state, _ := os.ReadFile(port + "state")
		_, devErr := os.Stat("/dev/infiniband/uverbs0")
		if strings.Contains(string(state), "ACTIVE") && hasGID(port, want) && devErr == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is not usable: port %q, GID %s present: %v, /dev/infiniband/uverbs0: %v",
				dev, strings.TrimSpace(string(state)), want, hasGID(port, want), devErr)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func hasGID(port, want string) bool {
	for i := range 4 {
		b, err := os.ReadFile(fmt.Sprintf("%sgids/%d", port, i))
		if err == nil && strings.TrimSpace(string(b)) == want {
			return true
		}
	}
	return false
}
