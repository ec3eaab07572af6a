//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/launch"
	"github.com/ibconduit/conduit/internal/sysinfo"
)

func TestSeveralProgramsAreOneJob(t *testing.T) {
	code, out, errs := finish(t, nil, "-n", "1", "-x", "K=one", "sh", "-c", "echo $IBCONDUIT_RANK of $IBCONDUIT_SIZE $K $L", ":", "-np", "2", "-x", "L=two", "sh", "-c", "echo second $IBCONDUIT_RANK $K $L")
	if want := []string{"[0] 0 of 3 one", "[1] second 1 two", "[2] second 2 two"}; code != 0 || !slices.Equal(lines(out), want) {
		t.Errorf("code %d: %q %s", code, lines(out), errs)
	}
	// Two files are two builds.
	copied := filepath.Join(t.TempDir(), "another")
	text, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(copied, relabelled(text), 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	code, out, errs = finish(t, nil, "-n", "1", "-x", asRank+"=conduit", self, ":", "-x", asRank+"=conduit", copied)
	if code != 0 || strings.Count(out, " of 2\n") != 2 {
		t.Errorf("code %d: %s%s", code, out, errs)
	}
	// One job of them that does not say so is refused.
	code, out, _ = finish(t, append(asRankToo("conduit"), "OTHER="+copied), "-n", "2", "sh", "-c", `test $IBCONDUIT_RANK = 0 || R=$OTHER; `+joins)
	if code != 1 || !strings.Contains(out, "the ranks do not fit together: build is ") {
		t.Errorf("code %d: %s", code, out)
	}
}

// relabelled is a program with another build id: that of Go stands behind the owner's name of an
// ELF note.
func relabelled(program []byte) []byte {
	const owner = "\x04\x00\x00\x00Go\x00\x00"
	if i := strings.Index(string(program), owner); i >= 0 {
		program[i+len(owner)+1] ^= 1
	}
	return program
}

func TestArgumentsThatAreNoText(t *testing.T) {
	_, out, _ := finish(t, nil, "printf", "%s|", "\xff\n", "", "-n", "--", "it's")
	if want := "\xff\n||-n|--|it's|"; out != want {
		t.Errorf("%q, want %q", out, want)
	}
	if _, out, _ := finish(t, nil, "--", "echo", "a", ":", "b"); out != "a : b\n" {
		t.Errorf("%q", out)
	}
}

func TestWrongUsageOfJobsIsSaid(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(file, []byte("a slots=2\nb 4\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, try := range []struct {
		args []string
		want string
	}{
		{[]string{"true", ":"}, "no program behind the colon"},
		{[]string{"true", ":", "-n", "0", "true"}, "-n 0"},
		{[]string{"true", ":", "-H", "a", "true"}, "behind the colon: unknown flag -H"},
		{[]string{"-x", "IBCONDUIT_TEST_UNSET", "true"}, "it has no value here"},
		{[]string{"-H", "a:0", "true"}, `-H a:0: behind the colon "0": want a number of ranks from 1 up`},
		{[]string{"-H", "a b", "true"}, `"a b" is no name of a host`},
		{[]string{"--host=-oProxyCommand=x", "true"}, "is no name of a host"},
		{[]string{"-H", "a", "--hostfile", "b", "true"}, "one of them"},
		{[]string{"--hostfile", "/no/such", "true"}, "--hostfile: open /no/such"},
		{[]string{"--bind-to", "socket", "true"}, "--bind-to must be one of"},
		{[]string{"--output", "d", "--prefix", "true"}, "files have no prefix"},
		{[]string{"-n", "2", ""}, "the name of the program is empty"},
		{[]string{"true", ":", ""}, "behind the colon: the name of the program is empty"},
		{[]string{"--hostfile", file, "true"}, file + `:2: "4": want a host as a, a:2 or a slots=2`},
	} {
		if code, _, errs := finish(t, nil, try.args...); code != 80 || !strings.Contains(errs, try.want) {
			t.Errorf("%q: code %d: %s", try.args, code, errs)
		}
	}
}

func TestEmptyValuesAreRefused(t *testing.T) {
	flags := []string{"-n", "-H", "--hostfile", "--output", "-x", "--bind-to", "--timeout", "--grace"}
	for _, f := range flags {
		if code, _, errs := finish(t, nil, f, "", "true"); code != 80 || !strings.Contains(errs, "the value is empty") {
			t.Errorf("%s: code %d: %s", f, code, errs)
		}
	}
	for _, args := range [][]string{{"--hostfile=", "true"}, {"-H", "a,,b", "true"}, {"-H", "a,", "true"}, {"-H", "", "-H", "a", "true"}, {"true", ":", "-x", "", "true"}} {
		if code, _, errs := finish(t, nil, args...); code != 80 || !strings.Contains(errs, "the value is empty") {
			t.Errorf("%q: code %d: %s", args, code, errs)
		}
	}
}

func TestWordsOfAHostfile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hosts")
	for line, want := range map[string]string{
		"a slots=2 max_slots=4": "[{a 2}]", "a max-slots=4 slots=2": "[{a 2}]", "a slots_max=4 slots-max=4 ifhn=ib0": "[{a 1}]",
		"\ufeffa slots=2\r\n": "[{a 2}]",
		"a slot=4":            `"slot=4": unknown word; the nearest is slots=`,
		"a Slots=4":           `"Slots=4": unknown word; the nearest is slots=`,
		"a cpu=4":             `"cpu=4": unknown word; the nearest is slots=`,
		"a max-slot=4":        `"max-slot=4": unknown word; the nearest is max-slots=`,
		"a user=me":           `"user=me": another user is written me@ before the host`,
		"a slots=x":           `slots="x": want a number of ranks from 1 up`,
		"a slots=":            `slots="": want a number of ranks from 1 up`,
		"a slots = 4":         `"slots": want a host as a, a:2 or a slots=2`,
		"slots=4":             `"slots=4" is no name of a host`,
		"a slots=2 slots=2":   "[{a 2}]",
		"a slots=2 slots=4":   `"slots=4": 2 before it`,
		"a:2 slots=4":         `"slots=4": 2 before it`,
		"a binding=numa":      `"binding=numa": --bind-to core or numa binds the ranks of all hosts`,
		"a:2:3":               `"a:2:3" is neither a host with a number of ranks, as a:2, nor an address of IPv6`,
		"[::1":                `"[::1" is neither a host with a number of ranks, as a:2, nor an address of IPv6`,
		"a]":                  `"a]" is no name of a host`,
		"@a":                  `"@a" is no name of a host`,
		"me@[::1]:2":          "[{me@::1 2}]",
	} {
		if err := os.WriteFile(file, []byte(line), 0o600); err != nil {
			t.Fatal(err)
		}
		list, err := hostFile(file)
		if got := fmt.Sprint(list); err == nil && got != want || err != nil && err.Error() != file+":1: "+want {
			t.Errorf("%q: %s, %v, want %s", line, got, err, want)
		}
	}
}

func TestOutputGoesToFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "dir")
	code, out, errs := finish(t, nil, "-n", "11", "--output", dir, "sh", "-c", "echo out $IBCONDUIT_RANK; echo err $IBCONDUIT_RANK >&2; printf end")
	if code != 0 || out+errs != "" {
		t.Errorf("code %d: %s%s", code, out, errs)
	}
	for r := range 11 {
		text, _ := os.ReadFile(filepath.Join(dir, fmt.Sprintf("rank-%02d.out", r)))
		warn, _ := os.ReadFile(filepath.Join(dir, fmt.Sprintf("rank-%02d.err", r)))
		if string(text) != fmt.Sprintf("out %d\nend", r) || string(warn) != fmt.Sprintf("err %d\n", r) {
			t.Errorf("rank %d: %q, %q", r, text, warn)
		}
	}
	// Those of other hosts come to this one.
	dir = t.TempDir()
	code, out, errs = newCluster(t, "", direct).run("-H", "a,b", "--output", dir, "hostname")
	a, _ := os.ReadFile(filepath.Join(dir, "rank-0.out"))
	b, _ := os.ReadFile(filepath.Join(dir, "rank-1.out"))
	if code != 0 || string(a) != "a\n" || string(b) != "b\n" || out+errs != "" {
		t.Errorf("code %d: %q %q %s%s", code, a, b, out, errs)
	}
	if code, _, errs := finish(t, nil, "--output", "/dev/null/x", "true"); code != 126 || !strings.Contains(errs, "/dev/null") {
		t.Errorf("code %d: %s", code, errs)
	}
}

// A signal waits for as long as a process is stopped.
func TestStoppedRanksTakeTheSignalsOfTheEnd(t *testing.T) {
	const script = `trap "echo told; exit 0" TERM QUIT; test $IBCONDUIT_RANK = $FAILS && exit 3; kill -STOP $$; exec sleep 600`
	for _, try := range []struct {
		fails, timeout string
		code           int
		out            string
	}{
		{"0", "60s", 3, "told\n"},
		{"none", "1s", 124, "told\ntold\n"},
	} {
		code, out, errs := finish(t, nil, "-n", "2", "--no-prefix", "--timeout", try.timeout, "--grace", "2s", "-x", "FAILS="+try.fails, "sh", "-c", script)
		if code != try.code || out != try.out {
			t.Errorf("code %d, %q; %s", code, out, errs)
		}
	}
}

// A job that hangs is asked for its stacks, and who does not end is named.
func TestATimeoutAsksForStacks(t *testing.T) {
	code, out, errs := finish(t, nil, "-n", "3", "--timeout", "1s", "--grace", "500ms", "bash", "-c",
		`test $IBCONDUIT_RANK != 0 || exit 0; trap "echo stack; exit 2" QUIT; test $IBCONDUIT_RANK = 1 || trap "" QUIT; while :; do sleep 0.02; done`)
	if code != 124 || !strings.Contains(out, "[1] stack\n") {
		t.Errorf("code %d: %s%s", code, out, errs)
	}
	for _, want := range []string{"ibrun: ranks 1,2 still run: SIGQUIT, ", "ibrun: rank 2 did not end within 500ms: SIGTERM\n", "not finished within 1s"} {
		if !strings.Contains(errs, want) {
			t.Errorf("no %q: %s", want, errs)
		}
	}
}

func TestRanksAreBoundToCores(t *testing.T) {
	var ours unix.CPUSet
	if err := unix.SchedGetaffinity(0, &ours); err != nil {
		t.Fatal(err)
	}
	code, out, errs := finish(t, nil, "--bind-to", "core", "--report", "grep", "Cpus_allowed_list", "/proc/self/status")
	list := strings.TrimSpace(strings.TrimPrefix(out, "Cpus_allowed_list:"))
	report := ": processors " + list
	if _, err := strconv.Atoi(list); err == nil { // one
		report += sysinfo.OneProcessor
	}
	if code != 0 || list == "" || !strings.HasSuffix(errs, report+"\n") || !strings.HasPrefix(errs, "ibrun: rank 0 (pid ") {
		t.Errorf("code %d: %q %s", code, out, errs)
	}
	n := ours.Count() + 1
	code, _, errs = finish(t, nil, "-n", fmt.Sprint(n), "--bind-to", "core", "true")
	if code != 126 || !strings.Contains(errs, fmt.Sprintf("for %d ranks: start fewer, or use --bind-to none", n)) {
		t.Errorf("code %d: %s", code, errs)
	}
}

func TestHostsAreRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(file, []byte("# nodes\na slots=2 max-slots=4\n\nb:3 # old\n user@c\na\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, try := range []struct {
		c    command
		want string
	}{
		{command{Host: []string{"a:2", "b"}}, "a[0 1] b[2] 3"},
		{command{Host: []string{"a:2", "b"}, Ranks: new(7)}, "a[0 1 3 4 6] b[2 5] 7"},
		{command{Host: []string{"a:2", "b"}, Ranks: new(1)}, "a[0] b[] 1"},
		{command{Host: []string{"a", "a", "[fe80::1%eth0]:2", "::1"}}, "a[0 1] fe80::1%eth0[2 3] ::1[4] 5"},
		{command{Host: []string{"localhost:3"}}, "3"},
		{command{Host: []string{"LOCALHOST:3"}}, "3"},
		{command{Hostfile: file}, "a[0 1 2] b[3 4 5] user@c[6] 7"},
	} {
		hosts, n, err := try.c.hosts(0)
		if got := placed(hosts, n); got != try.want || err != nil {
			t.Errorf("%+v: %q, want %q; %v", try.c, got, try.want, err)
		}
	}
}

func placed(hosts []launch.Host, n int) (text string) {
	for _, h := range hosts {
		text += fmt.Sprint(h.Name, h.Ranks, " ")
	}
	return text + fmt.Sprint(n)
}

func TestHostsOfABatchJob(t *testing.T) {
	file := filepath.Join(t.TempDir(), "nodes")
	if err := os.WriteFile(file, []byte("n1\nn1\nn2\nn2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, try := range []struct{ env, want string }{
		{"", "[] <nil>"},
		{"SLURM_JOB_NODELIST=n[09-11,7]-ib,m SLURM_TASKS_PER_NODE=2(x3),1", "[{n09-ib 2} {n10-ib 2} {n11-ib 2} {n7-ib 1} {m 1}] <nil>"},
		{"SLURM_JOB_NODELIST=r[1-2]n[0-1]", "[{r1n0 1} {r1n1 1} {r2n0 1} {r2n1 1}] <nil>"},
		{"SLURM_JOB_NODELIST=n1 SLURM_TASKS_PER_NODE=4", "[] <nil>"},
		{"SLURM_JOB_NODELIST=n[1-2] SLURM_STEP_ID=0", "[] <nil>"},
		{"SLURM_JOB_NODELIST=n[1-2] SLURM_STEP_ID=4294967290", "[{n1 1} {n2 1}] <nil>"},
		{"SLURM_JOB_NODELIST=n[1-2] PMI_RANK=0", "[] <nil>"},
		{"SLURM_JOB_NODELIST=n[1-2] IBCONDUIT_RANK=0", "[] <nil>"},
		{"SLURM_JOB_NODELIST=n[1-99999999]", `[] SLURM_JOB_NODELIST=n[1-99999999]: "1-99999999" is no range of numbers (-H names the hosts)`},
		{"SLURM_JOB_NODELIST=n[1-2", "[] SLURM_JOB_NODELIST=n[1-2: a bracket is not closed (-H names the hosts)"},
		{"SLURM_JOB_NODELIST=n[1-2] SLURM_TASKS_PER_NODE=2(x", `[] SLURM_JOB_NODELIST=n[1-2]: SLURM_TASKS_PER_NODE=2(x: a bracket is not closed (-H names the hosts)`},
		{"SLURM_JOB_NODELIST=n[1-2] SLURM_TASKS_PER_NODE=two", `[] SLURM_JOB_NODELIST=n[1-2]: SLURM_TASKS_PER_NODE=two: "two": want a number of ranks from 1 up (-H names the hosts)`},
		{"PBS_NODEFILE=" + file, "[{n1 2} {n2 2}] <nil>"},
		{"PBS_NODEFILE=/no/such", "[] PBS_NODEFILE: open /no/such: no such file or directory (-H names the hosts)"},
		{"LSB_HOSTS=n1_n1_n2", "[{n1 2} {n2 1}] <nil>"},
		{"LSB_HOSTS=n1_n1", "[] <nil>"},
		{"LSB_DJOB_HOSTFILE=" + file, "[{n1 2} {n2 2}] <nil>"},
		{"LSB_HOSTS=n1_n3 LSB_DJOB_HOSTFILE=" + file, "[{n1 1} {n3 1}] <nil>"},
	} {
		list, err := allocated(func(name string) string {
			for kv := range strings.FieldsSeq(try.env) {
				if v, ok := strings.CutPrefix(kv, name+"="); ok {
					return strings.ReplaceAll(v, "_", " ")
				}
			}
			return ""
		})
		if got := fmt.Sprint(list, " ", err); got != try.want {
			t.Errorf("%s: %s, want %s", try.env, got, try.want)
		}
	}
}
