package guest

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/ibconduit/conduit/hack/softroce/internal/wire"
	"github.com/ibconduit/conduit/internal/mux"
)

// portQueue is how many frames a port holds. A sender in rxe has at most 128 unacknowledged
// packets a queue pair (RXE_MAX_UNACKED_PSNS, drivers/infiniband/sw/rxe/rxe_param.h).
const portQueue = 4096

// joinPorts names the cards and has their frames counted. Where there are several, eth0 is a bridge
// over them that forwards nothing from one to another: each guest has a card for each other one.
func joinPorts(ports []wire.Port, mtu int) error {
	all, err := netlink.LinkList()
	if err != nil {
		return err
	}
	cards := map[string]netlink.Link{}
	for _, l := range all {
		cards[l.Attrs().HardwareAddr.String()] = l
	}
	for _, p := range ports {
		if cards[p.MAC] == nil {
			return fmt.Errorf("there is no network card %s", p.MAC)
		}
		if err := netlink.LinkSetName(cards[p.MAC], p.Name); err != nil {
			return fmt.Errorf("name %s of a network card: %w", p.Name, err)
		}
		if err := setFaults(&wire.Link{Port: p.Name}); err != nil {
			return err
		}
	}
	if len(ports) < 2 {
		return nil
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}}
	if err := netlink.LinkAdd(bridge); err != nil {
		return fmt.Errorf("add a bridge: %w", err)
	}
	for _, p := range ports {
		err := netlink.LinkSetMaster(cards[p.MAC], bridge)
		if err == nil {
			err = netlink.LinkSetIsolated(cards[p.MAC], true)
		}
		if err == nil {
			err = linkUp(p.Name, "", mtu)
		}
		if err != nil {
			return fmt.Errorf("port %s of the bridge: %w", p.Name, err)
		}
	}
	return nil
}

func linkUp(name, addr string, mtu int) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	if mtu > 0 {
		if err := netlink.LinkSetMTU(l, mtu); err != nil {
			return fmt.Errorf("mtu of %s: %w", name, err)
		}
	}
	if addr != "" {
		a, err := netlink.ParseAddr(addr)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(l, a); err != nil {
			return fmt.Errorf("address %s on %s: %w", addr, name, err)
		}
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}

// setFaults has the frames that leave by a port lost, or delayed. The counters go on.
func setFaults(l *wire.Link) error {
	link, err := netlink.LinkByName(l.Port)
	if err != nil {
		return fmt.Errorf("port %s: %w", l.Port, err)
	}
	root := netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0),
		Parent: netlink.HANDLE_ROOT}
	faults := netlink.NetemQdiscAttrs{Limit: portQueue, Loss: float32(l.Loss * 100),
		Latency: uint32(l.Delay.Microseconds())}
	if err := netlink.QdiscReplace(netlink.NewNetem(root, faults)); err != nil {
		return fmt.Errorf("netem on %s: %w", l.Port, err)
	}
	return nil
}

// changeLink serves wire.OpLink.
func changeLink(out *mux.Stream, l *wire.Link) error {
	if l == nil {
		return errors.New("no link is named")
	}
	if l.Change {
		if err := setFaults(l); err != nil {
			return err
		}
	}
	link, err := netlink.LinkByName(l.Port)
	if err != nil {
		return err
	}
	all, err := netlink.QdiscList(link)
	if err != nil {
		return err
	}
	for _, q := range all {
		if s := q.Attrs().Statistics; q.Type() == "netem" && s != nil {
			n := wire.LinkStats{Sent: uint64(s.Basic.Packets), Lost: uint64(s.Queue.Drops)}
			return errors.Join(json.NewEncoder(out).Encode(n), out.CloseWrite())
		}
	}
	return fmt.Errorf("port %s does not count", l.Port)
}
