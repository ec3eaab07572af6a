package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/ibconduit/conduit/internal/hostlist"
	"github.com/ibconduit/conduit/internal/launch"
	"github.com/ibconduit/conduit/internal/nearest"
)

// slots are how many ranks a host has.
type slots struct {
	host string
	n    int
}

// hosts places the ranks: n is the number of all programs' ranks, of which some are behind a colon.
// Without hosts, or where they are all this one, there are none.
func (c *command) hosts(behind int) (all []launch.Host, n int, err error) {
	var list []slots
	switch {
	case len(c.Host) > 0:
		list, err = hostList(c.Host, "-H")
	case c.Hostfile != "":
		if list, err = hostFile(c.Hostfile); errors.As(err, new(*fs.PathError)) {
			err = fmt.Errorf("--hostfile: %w", err)
		}
	default:
		list, err = allocated(os.Getenv)
	}
	if err != nil {
		return nil, 0, err
	}
	capacity := 0
	for _, s := range list {
		capacity += s.n
	}
	n = max(1+behind, capacity)
	if c.Ranks != nil {
		n = *c.Ranks + behind
	}
	if n > launch.MaxRanks {
		return nil, 0, fmt.Errorf("%d ranks: at most %d can meet", n, launch.MaxRanks)
	}
	elsewhere := false
	for _, s := range list {
		elsewhere = elsewhere || !launch.OnThisHost(s.host)
	}
	if !elsewhere {
		return nil, n, nil
	}
	all = make([]launch.Host, len(list))
	for i := range all {
		all[i].Name = list[i].host
	}
	for r := 0; r < n; {
		for i, s := range list {
			for range min(s.n, n-r) {
				all[i].Ranks = append(all[i].Ranks, r)
				r++
			}
		}
	}
	return all, n, nil
}

// put adds ranks of a host, which may be there already; one where n is 0.
func put(list []slots, host string, n int) []slots {
	n = max(n, 1)
	for i := range list {
		if list[i].host == host {
			list[i].n += n
			return list
		}
	}
	return append(list, slots{host, n})
}

// hostList reads hosts as they are written on a command line.
func hostList(specs []string, where string) (list []slots, err error) {
	for _, spec := range specs {
		host, n, err := hostSpec(spec)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", where, spec, err)
		}
		list = put(list, host, n)
	}
	return list, nil
}

// hostSpec reads a:2, user@a, [::1]:2 and ::1. n is 0 where nothing says how many ranks there are.
func hostSpec(spec string) (host string, n int, err error) {
	host = spec
	if i := strings.LastIndexByte(spec, ':'); i >= 0 && (strings.Count(spec, ":") == 1 || strings.Contains(spec, "]:")) {
		host = spec[:i]
		if n, err = slotsOf(spec[i+1:]); err != nil {
			return "", 0, fmt.Errorf("behind the colon %w", err)
		}
	}
	at := strings.LastIndexByte(host, '@') + 1
	name := host[at:]
	if inside, ok := strings.CutPrefix(name, "["); ok && strings.HasSuffix(inside, "]") {
		name = strings.TrimSuffix(inside, "]")
	}
	host = host[:at] + name
	if _, err := netip.ParseAddr(name); strings.Contains(name, ":") && err != nil {
		return "", 0, fmt.Errorf("%q is neither a host with a number of ranks, as a:2, nor an address of IPv6", host)
	}
	if name == "" || at == 1 || strings.HasPrefix(host, "-") || strings.ContainsAny(host, "=,;[] \t") {
		return "", 0, fmt.Errorf("%q is no name of a host", host)
	}
	return host, n, nil
}

func slotsOf(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%q: want a number of ranks from 1 up", text)
	}
	return n, nil
}

// passed are words of other launchers that change nothing here: bounds of Open MPI, which a larger
// -n passes as it does slots, and the network interface of Hydra's own connections.
var passed = []string{"max_slots", "max-slots", "slots_max", "slots-max", "ifhn"}

// hostWord reads a word behind a host, which may say how many ranks it has; n is the number before.
func hostWord(w string, n int) (int, error) {
	k, v, ok := strings.Cut(w, "=")
	switch {
	case !ok:
		return 0, fmt.Errorf("%q: want a host as a, a:2 or a slots=2", w)
	case k == "slots":
		m, err := slotsOf(v)
		if err != nil {
			return 0, fmt.Errorf("slots=%w", err)
		}
		if n != 0 && n != m {
			return 0, fmt.Errorf("%q: %d before it", w, n)
		}
		return m, nil
	case k == "binding":
		return 0, fmt.Errorf("%q: --bind-to core or numa binds the ranks of all hosts", w)
	case k == "user" || k == "username":
		return 0, fmt.Errorf("%q: another user is written %s@ before the host", w, v)
	case !slices.Contains(passed, k):
		return 0, fmt.Errorf("%q: unknown word; the nearest is %s=", w,
			nearest.Name(k, []string{"slots", "max_slots", "max-slots"}))
	}
	return n, nil
}

func hostFile(name string) (list []slots, err error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	line := 0
	for l := range strings.Lines(strings.TrimPrefix(string(text), "\ufeff")) { // a byte order mark
		line++
		l, _, _ = strings.Cut(l, "#")
		words := strings.Fields(l)
		if len(words) == 0 {
			continue
		}
		host, n, err := hostSpec(words[0])
		for _, w := range words[1:] {
			if err == nil {
				n, err = hostWord(w, n)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, line, err)
		}
		list = put(list, host, n)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s: it names no host", name)
	}
	return list, nil
}

// interactiveStep is the number of the step in which salloc may run a shell (slurm.h,
// SLURM_INTERACTIVE_STEP).
const interactiveStep = "4294967290"

// allocated are the hosts of the batch job in which ibrun was started, where these are several. A
// process that a launcher has started there as one of many gets none: it would start its job once
// for each of them.
func allocated(env func(string) string) (list []slots, err error) {
	for _, rank := range []string{"IBCONDUIT_RANK", "PMI_RANK", "PMI_ID", "PMIX_RANK",
		"OMPI_COMM_WORLD_RANK", "SLURM_STEP_ID"} {
		if v := env(rank); v != "" && (rank != "SLURM_STEP_ID" || v != interactiveStep) {
			return nil, nil
		}
	}
	switch {
	case env("SLURM_JOB_NODELIST") != "":
		list, err = slurmHosts(env("SLURM_JOB_NODELIST"), env("SLURM_TASKS_PER_NODE"))
		if err != nil {
			err = fmt.Errorf("SLURM_JOB_NODELIST=%s: %w (-H names the hosts)", env("SLURM_JOB_NODELIST"), err)
		}
	case env("PBS_NODEFILE") != "":
		list, err = hostFile(env("PBS_NODEFILE"))
		if err != nil {
			err = fmt.Errorf("PBS_NODEFILE: %w (-H names the hosts)", err)
		}
	case env("LSB_HOSTS") != "":
		list, err = hostList(strings.Fields(env("LSB_HOSTS")), "LSB_HOSTS")
	case env("LSB_DJOB_HOSTFILE") != "": // of a job that is too large for LSB_HOSTS, too
		list, err = hostFile(env("LSB_DJOB_HOSTFILE"))
		if err != nil {
			err = fmt.Errorf("LSB_DJOB_HOSTFILE: %w (-H names the hosts)", err)
		}
	}
	if err != nil || len(list) < 2 {
		return nil, err
	}
	return list, nil
}

// slurmHosts reads n[01-03,7],m and 2(x3),1.
func slurmHosts(nodes, tasks string) (list []slots, err error) {
	names, err := hostlist.Expand(nodes)
	if err != nil {
		return nil, err
	}
	var each []int
	if tasks == "" {
		tasks = "1"
	}
	for part := range strings.SplitSeq(tasks, ",") {
		number, times, many := strings.Cut(part, "(x")
		n, err := slotsOf(number)
		count := 1
		if err == nil && many {
			inside, closed := strings.CutSuffix(times, ")")
			if count, err = slotsOf(inside); !closed {
				err = errors.New("a bracket is not closed")
			}
		}
		if err != nil {
			return nil, fmt.Errorf("SLURM_TASKS_PER_NODE=%s: %w", tasks, err)
		}
		for range min(count, len(names)) {
			each = append(each, n)
		}
	}
	for i, name := range names {
		n := 1
		if i < len(each) {
			n = each[i]
		}
		list = put(list, name, n)
	}
	return list, nil
}
