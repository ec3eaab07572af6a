package pairs

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ibconduit/conduit/internal/fabric"
	"github.com/ibconduit/conduit/internal/fabric/sim"
)

// matrix of so many ranks, perHost on each host, all pairs of which have the same figure.
func matrix(unit string, n, perHost int, v float64) *Matrix {
	m := &Matrix{Unit: unit, Ranks: make([]Rank, n)}
	for i := range n {
		m.Ranks[i] = Rank{Host: fmt.Sprintf("n%d", i/perHost), MTU: 4096, Link: "Ethernet", Device: "mlx5_0"}
		m.Values, m.Networks = append(m.Values, make([]float64, n)), append(m.Networks, make([]string, n))
		for j := range n {
			if i != j {
				m.Values[i][j] = v * (1 + 0.02*float64((i+j)%3)) // links are not quite alike
			}
			m.Networks[i][j] = "ibv"
		}
	}
	return m
}

// both sets the figure of a link.
func (m *Matrix) both(i, j int, v float64) { m.Values[i][j], m.Values[j][i] = v, v }

// outside sets the figures of some ranks with all other hosts.
func (m *Matrix) outside(v float64, ranks ...int) {
	for _, r := range ranks {
		for p := range m.Ranks {
			if m.Ranks[p].Host != m.Ranks[r].Host {
				m.both(r, p, v)
			}
		}
	}
}

// found is what the findings are about.
func found(m *Matrix) (all []string) {
	m.Analyse(2)
	for _, f := range m.Findings {
		all = append(all, fmt.Sprint(f.Kind, f.Ranks))
	}
	return all
}

func TestWhatIsSlowIsFound(t *testing.T) {
	for _, c := range []struct {
		name string
		m    *Matrix
		do   func(m *Matrix)
		want []string
	}{
		{"all alike", matrix("ns", 8, 1, 2000), func(*Matrix) {}, nil},
		{"two ranks", matrix("ns", 2, 1, 2000), func(m *Matrix) { m.both(0, 1, 9000) }, nil}, // nothing to compare it with
		{"a link of three", matrix("ns", 3, 1, 2000), func(m *Matrix) { m.both(0, 2, 9000) }, []string{"link[0 2]"}},
		{"a link of eight", matrix("ns", 8, 1, 2000), func(m *Matrix) { m.both(3, 6, 4300) }, []string{"link[3 6]"}},
		{"just not", matrix("ns", 8, 1, 2000), func(m *Matrix) { m.both(3, 6, 3900) }, nil},
		{"two links, the worse first", matrix("ns", 8, 1, 2000), func(m *Matrix) { m.both(0, 1, 6000); m.both(2, 7, 9000) }, []string{"link[2 7]", "link[0 1]"}},
		{"one direction", matrix("B/s", 6, 1, 1e10), func(m *Matrix) { m.Values[4][1] = 1e9 }, []string{"direction[4 1]"}},
		{"a link's bandwidth", matrix("B/s", 6, 1, 1e10), func(m *Matrix) { m.both(4, 1, 4e9) }, []string{"link[1 4]"}},
		{"a rank of three", matrix("ns", 3, 1, 2000), func(m *Matrix) { m.both(0, 2, 9000); m.both(1, 2, 9000) }, []string{"host[2]"}},
		{"a host of four with two ranks each", matrix("ns", 8, 2, 2000), func(m *Matrix) {
			for _, r := range []int{2, 3} {
				for p := range 8 {
					if p != r {
						m.both(r, p, 7000)
					}
				}
			}
		}, []string{"host[2 3]"}},
		{"a host of three with four ranks each, not within it", matrix("ns", 12, 4, 2000), func(m *Matrix) { m.outside(7000, 4, 5, 6, 7) }, []string{"host[4 5 6 7]"}},
		{"a link within it besides", matrix("ns", 24, 8, 2000), func(m *Matrix) {
			m.outside(7000, 8, 9, 10, 11, 12, 13, 14, 15)
			m.both(9, 10, 9000)
		}, []string{"link[9 10]", "host[8 9 10 11 12 13 14 15]"}},
		{"a rank's port of two hosts", matrix("B/s", 8, 4, 1e10), func(m *Matrix) { m.outside(2e9, 5) }, []string{"rank[5]"}},
		{"all pairs of two hosts of three", matrix("ns", 6, 2, 2000), func(m *Matrix) {
			for _, i := range []int{0, 1} {
				m.both(i, 4, 7000)
				m.both(i, 5, 7000)
			}
		}, []string{"link[0 4]", "link[0 5]", "link[1 4]", "link[1 5]"}},
		{"a rank of a host, half as much is enough", matrix("ns", 8, 4, 2000), func(m *Matrix) {
			for p := range 8 {
				if p != 5 {
					m.both(5, p, 3400)
				}
			}
		}, []string{"rank[5]"}},
		{"ranks of one host", matrix("ns", 4, 4, 300), func(m *Matrix) { m.both(1, 3, 3000) }, []string{"link[1 3]"}},
		{"within a host is another class", matrix("ns", 6, 3, 2000), func(m *Matrix) {
			for i := range 6 {
				for j := range 6 {
					if i != j && i/3 == j/3 {
						m.Values[i][j] = 200
					}
				}
			}
		}, nil},
		{"not measured", matrix("ns", 4, 1, 2000), func(m *Matrix) { m.both(0, 1, 0) }, nil},
		{"restless links", matrix("ns", 4, 1, 2000), func(m *Matrix) { m.both(0, 1, 1000); m.both(2, 3, 3900) }, nil},
	} {
		c.do(c.m)
		if d := cmp.Diff(c.want, found(c.m)); d != "" {
			t.Errorf("%s: %s\n%+v", c.name, d, c.m.Findings)
		}
	}
}

func TestFindingsNameRanksHostsAndFigures(t *testing.T) {
	m := matrix("ns", 4, 1, 2000)
	m.both(1, 3, 20000)
	m.Analyse(2)
	if got, want := m.Findings[0].Text, "slow link between rank 1 (host n1) and rank 3 (host n3): 20 us there, 20 us back; typical of ibv between hosts: 2 us"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := m.Findings[0].Times; got != 10 {
		t.Errorf("%v times", got)
	}
}

// Within a host the port is not used.
func TestASlowPortIsSlowWithOtherHosts(t *testing.T) {
	m := matrix("ns", 12, 4, 2000)
	m.outside(20000, 4, 5, 6, 7)
	m.Analyse(2)
	if want := "host n1 is slow with all other hosts: 9.6 times what is typical, at best"; len(m.Findings) != 1 || m.Findings[0].Text != want {
		t.Errorf("want %q, got %+v", want, m.Findings)
	}
}

func TestTheHostWithTheWrongMTUIsNamed(t *testing.T) {
	m := matrix("ns", 6, 2, 2000)
	m.Ranks[2].MTU, m.Ranks[3].MTU = 1024, 1024
	m.Analyse(2)
	if len(m.Findings) != 1 || m.Findings[0].Kind != Setting || m.Findings[0].Text != "host n1 has the MTU 1024, others 4096" || !slices.Equal(m.Findings[0].Ranks, []int{2, 3}) {
		t.Errorf("%+v", m.Findings)
	}
	two := matrix("ns", 2, 1, 2000) // which of them is wrong nobody can say
	two.Ranks[1].MTU = 1024
	two.Analyse(2)
	if len(two.Findings) != 2 || two.Findings[0].Text != "host n1 has the MTU 1024" || two.Findings[1].Text != "host n0 has the MTU 4096" {
		t.Errorf("%+v", two.Findings)
	}
}

func TestEachPairIsInOneStepAHostInOnePair(t *testing.T) {
	for _, c := range []struct{ ranks, perHost, steps int }{{2, 1, 2}, {3, 1, 6}, {8, 1, 14}, {9, 1, 18}, {4, 4, 12}, {6, 2, 0}} {
		var hosts []string
		for i := range c.ranks {
			hosts = append(hosts, fmt.Sprint(i/c.perHost))
		}
		seen := make(map[[2]int]bool)
		steps := Schedule(hosts)
		for _, s := range steps {
			busy := make(map[string]int)
			for _, p := range s {
				if seen[p] {
					t.Errorf("%+v: %v comes twice", c, p)
				}
				seen[p] = true
				if busy[hosts[p[0]]]++; hosts[p[0]] != hosts[p[1]] {
					busy[hosts[p[1]]]++
				}
			}
			for h, n := range busy {
				if n > 1 {
					t.Errorf("%+v: host %s is in %d pairs of a step", c, h, n)
				}
			}
		}
		if len(seen) != c.ranks*(c.ranks-1) || c.steps > 0 && len(steps) != c.steps {
			t.Errorf("%+v: %d pairs in %d steps", c, len(seen), len(steps))
		}
	}
}

// overSim measures gets of a word between all ranks of a simulated network, in virtual time.
func overSim(t *testing.T, ranks int, plant func(w *sim.World)) *Matrix {
	t.Helper()
	w, err := sim.New(sim.Config{Ranks: ranks, Seed: 25, SegmentSize: 64})
	if err != nil {
		t.Fatal(err)
	}
	w.ConnectAll()
	plant(w)
	m := matrix("ns", ranks, 1, 0)
	err = w.Run(func(ctx context.Context, r *sim.Rank) error {
		lane, err := r.Net().NewLane()
		if err != nil {
			return err
		}
		dst := make([]byte, 8)
		for peer := range ranks {
			if peer == r.ID() {
				continue
			}
			var best time.Duration
			for range 8 { // the way has a random part
				begin := w.Now()
				h, err := lane.Get(peer, 0, dst, 0)
				if err == nil && h != fabric.Done {
					_, err = lane.Wait(ctx, h)
				}
				if err != nil {
					return err
				}
				if took := w.Now() - begin; best == 0 || took < best {
					best = took
				}
			}
			m.Values[r.ID()][peer] = float64(best)
		}
		return lane.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestPlantedSlowLinksAreFoundOnSim(t *testing.T) {
	for _, c := range []struct {
		name  string
		plant func(w *sim.World)
		want  []string
	}{
		{"none", func(*sim.World) {}, nil},
		{"a link", func(w *sim.World) { w.Delay(3, 11, 20*time.Microsecond) }, []string{"link[3 11]"}},
		{"two links", func(w *sim.World) {
			w.Delay(0, 1, 40*time.Microsecond)
			w.Delay(1, 15, 15*time.Microsecond)
		}, []string{"link[0 1]", "link[1 15]"}},
		{"a host", func(w *sim.World) {
			for p := range 16 {
				if p != 7 {
					w.Delay(7, p, 10*time.Microsecond)
				}
			}
		}, []string{"host[7]"}},
	} {
		m := overSim(t, 16, c.plant)
		got := found(m)
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s: %s", c.name, d)
			for _, f := range m.Findings {
				t.Log(strings.TrimSpace(f.Text))
			}
		}
	}
}
