package metrics

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/regcache"
)

// kinds are the names of all that a rank can show, with their kinds.
func kinds(t *testing.T) map[string]Kind {
	all := map[string]Kind{}
	add := func(f Figure) { all[prefix+f.Name] = f.Kind }
	operations("shm", fabric.Counters{}, add)
	messages("shm", am.Stats{}, add)
	library("shm", am.Stats{}, add)
	heaps(conduit.HeapStats{}, 0, add)
	memory(conduit.MemoryStats{}, conduit.MemoryLayout{}, add)
	registrations(regcache.Stats{}, add)
	latencies(map[string]map[string]conduit.Latency{"shm": {"put": {}}}, add)
	portSource{[]conduit.DevicePort{{Device: "d", Port: 1}}, func(string, int) (map[string]uint64, error) {
		return map[string]uint64{"symbol_error": 1, "port_xmit_data": 1, "port_rcv_data": 1}, nil
	}}.Figures(add)
	local(t, 1, func(j *conduit.Job) error {
		jobSource{j, j.Info()}.Figures(add)
		return nil
	})
	return all
}

// What dashboard and alerts name is there, and asked for as its kind is.
func TestDashboardAndAlertsNameWhatExists(t *testing.T) {
	all := kinds(t)
	named := regexp.MustCompile(`(rate|increase)?\(?(ibconduit_\w+)`)
	for file, least := range map[string]int{"dashboard.json": 20, "alerts.yml": 8, "alerts_test.yml": 8} {
		b, err := os.ReadFile("../deploy/metrics/" + file)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, m := range named.FindAllStringSubmatch(string(b), -1) {
			name, kind := m[2], Counter
			if base, ok := strings.CutSuffix(name, "_bucket"); ok {
				name, kind = base, Histogram
			}
			got, ok := all[name]
			seen[name] = true
			switch {
			case !ok:
				t.Errorf("%s: there is no metric %s", file, name)
			case m[1] != "" && got != kind:
				t.Errorf("%s: %s of %s, which is no counter", file, m[1], m[2])
			case m[1] == "" && got != Gauge && file != "alerts_test.yml":
				t.Errorf("%s: %s grows: ask for its rate", file, name)
			}
		}
		if len(seen) < least {
			t.Errorf("%s names %d metrics, want %d or more", file, len(seen), least)
		}
	}
}
