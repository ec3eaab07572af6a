package metrics

import (
	"strconv"

	"github.com/ibconduit/conduit"
)

// portSource reads the kernel's counters of the ports that a job uses.
type portSource struct {
	ports []conduit.DevicePort
	read  func(device string, port int) (map[string]uint64, error)
}

func newPortSource(ports []conduit.DevicePort) portSource {
	return portSource{ports: ports, read: readPort}
}

// ibtaOctets are the counters of the IBTA in units of four octets (IBTA 1.4 vol. 1 §16.1.3.5,
// PortXmitData and PortRcvData). They are shown in bytes, by names of their own.
var ibtaOctets = map[string]struct{ name, help string }{
	"port_xmit_data": {"port_transmit_bytes_total", "Bytes that the port sent, headers included, whoever sent them."},
	"port_rcv_data": {"port_receive_bytes_total",
		"Bytes that the port received, headers included, whoever received them."},
}

const portHelp = "What happened at the port, by the names that the kernel gives its counters (hw_counters and " +
	"counters in sysfs), whoever caused it."

func (s portSource) Figures(add func(Figure)) {
	for _, p := range s.ports {
		// No counters is no reason to fail a scrape: a driver may have none,
		// and a device may be unplugged.
		counters, _ := s.read(p.Device, p.Port)
		labels := []string{"device", p.Device, "port", strconv.Itoa(p.Port)}
		for name, v := range counters {
			if o, ok := ibtaOctets[name]; ok {
				add(Figure{Name: o.name, Help: o.help, Kind: Counter, Labels: labels, Value: 4 * float64(v)})
				continue
			}
			add(Figure{Name: "port_events_total", Help: portHelp, Kind: Counter, Value: float64(v),
				Labels: append([]string{"event", name}, labels...)})
		}
	}
}
