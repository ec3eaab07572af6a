//go:build linux

package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// byHand runs ranks 0 and 1 of a job on a host of their own, whose name is box and which has the
// address 10.9.8.7, with variables of their own. It returns what they print.
func byHand(t *testing.T, hosts, setup, both, first, second string) string {
	t.Helper()
	flags := "-mnu"
	if os.Geteuid() != 0 {
		flags += "r"
	}
	if err := exec.Command("unshare", flags, "true").Run(); err != nil {
		t.Skipf("unshare %s: %v", flags, err)
	}
	cmd := ibrun(t, append(asRankToo("exchange"), joinTimeout+"=3s"))
	cmd.Path, _ = exec.LookPath("unshare")
	cmd.Dir = t.TempDir()
	if err := os.WriteFile(cmd.Dir+"/hosts", []byte(hosts), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd.Args = []string{"unshare", flags, "sh", "-c", `set -e; hostname box; mount --bind hosts /etc/hosts; ip link set lo up
		export IBCONDUIT_SIZE=2 IBCONDUIT_SECRET=0123456789abcdef0123456789abcdef ` + asRank + `=exchange
		` + setup + `; export ` + both + `
		IBCONDUIT_RANK=0 ` + first + ` "$R" & ` + `IBCONDUIT_RANK=1 ` + second + ` "$R" & wait`}
	b, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, b)
	}
	return string(b)
}

const routed = "ip addr add 10.9.8.7/24 dev lo; ip route add default dev lo src 10.9.8.7"

func TestBothSidesFindOneAddress(t *testing.T) {
	for _, c := range []struct{ what, hosts, setup, both, first, second string }{
		{"Debian's own name, with a route", "127.0.0.1 localhost\n127.0.1.1 box\n", routed, "IBCONDUIT_ADDR=box:7777", "", ""},
		{"Debian's own name, another host", "127.0.0.1 localhost\n127.0.1.1 box\n", routed, "IBCONDUIT_ADDR=box:7777", "", "IBCONDUIT_ADDR=10.9.8.7:7777"},
		{"Debian's own name, without a route", "127.0.0.1 localhost\n127.0.1.1 box\n", "ip addr add 10.9.8.7/24 dev lo", "IBCONDUIT_ADDR=box:7777", "", "IBCONDUIT_ADDR=10.9.8.7:7777"},
		{"a name with two addresses", "10.9.8.6 box\n10.9.8.7 box\n", routed + "; ip addr add 10.9.8.6/24 dev lo", "IBCONDUIT_ADDR=box:7777", "", "IBCONDUIT_ADDR=10.9.8.7:7777"},
		{"a link-local address, too", "fe80::1 box\n10.9.8.7 box\n", routed, "IBCONDUIT_ADDR=box:7777", "", "IBCONDUIT_ADDR=10.9.8.7:7777"},
		{"the own name in capitals", "127.0.0.1 localhost\n127.0.1.1 box\n", routed, "IBCONDUIT_ADDR=BOX:7777", "", "IBCONDUIT_ADDR=10.9.8.7:7777"},
		{"an own name that leads nowhere", "127.0.0.1 localhost\n", "ip addr add 10.9.8.7/24 dev lo", "IBCONDUIT_ADDR=box:7777", "", ""},
		{"localhost where no file names it", "", "true", "IBCONDUIT_ADDR=localhost:7777", "", ""},
		{"the two loopbacks", "127.0.0.1 localhost\n", "true", "IBCONDUIT_ADDR=localhost:7777", "", "IBCONDUIT_ADDR=[::1]:7777"},
		{"a NAT's address", "127.0.0.1 localhost\n", routed, "IBCONDUIT_ADDR=10.9.8.7:7777", "IBCONDUIT_ADDR=192.0.2.9:7777 IBCONDUIT_LISTEN=10.9.8.7", ""},
		{"another port behind a NAT", "127.0.0.1 localhost\n", routed, "IBCONDUIT_ADDR=10.9.8.7:8888", "IBCONDUIT_ADDR=192.0.2.9:7777 IBCONDUIT_LISTEN=lo:8888", ""},
		{"all addresses", "127.0.0.1 localhost\n", routed, "IBCONDUIT_ADDR=10.9.8.7:7777", "IBCONDUIT_ADDR=192.0.2.9:7777 IBCONDUIT_LISTEN=0.0.0.0", ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			if out := byHand(t, c.hosts, c.setup, c.both, c.first, c.second); strings.Count(out, " of 2 by tcp") != 2 {
				t.Errorf("%s", out)
			}
		})
	}
}

func TestRanksThatDoNotMeetSayWhereTheyAre(t *testing.T) {
	out := byHand(t, "127.0.0.1 localhost\n", routed, "IBCONDUIT_ADDR=10.9.8.7:7777", "", "IBCONDUIT_ADDR=10.9.8.7:7778")
	if !strings.Contains(out, "missing rank 1; rank 0 listens at 10.9.8.7:7777 on box, the others dial 10.9.8.7:7777") ||
		!strings.Contains(out, "no rank 0 at 10.9.8.7:7778 within") {
		t.Errorf("%s", out)
	}
	out = byHand(t, "127.0.0.1 localhost\n", routed, "IBCONDUIT_ADDR=192.0.2.9:7777", "", "IBCONDUIT_ADDR=10.9.8.7:7777")
	if !strings.Contains(out, "set IBCONDUIT_LISTEN=") {
		t.Errorf("%s", out)
	}
}

func TestANameThatLeadsElsewhereIsExplained(t *testing.T) {
	out := byHand(t, "127.0.0.1 localhost\n192.0.2.99 box\n", routed, "IBCONDUIT_ADDR=box:7777", "", "")
	if !strings.Contains(out, "(the name is this host's, but leads to addresses that it does not have: mend /etc/hosts or DNS,") || strings.Contains(out, "rank 0 must run on the host") {
		t.Errorf("%s", out)
	}
}

// What a rank lacks it says at once, not after the time to join.
func TestARankWithoutASecretSaysSoAtOnce(t *testing.T) {
	out := byHand(t, "10.9.8.7 far\n", routed+"; unset IBCONDUIT_SECRET", "IBCONDUIT_ADDR=far:7777", "IBCONDUIT_ADDR=192.0.2.9:7777", "")
	if !strings.Contains(out, "rank 1: no secret, and 10.9.8.7:0 is not on loopback") && !strings.Contains(out, "rank 1: no secret, and 10.9.8.7:7777 is not on loopback") {
		t.Errorf("%s", out)
	}
}
