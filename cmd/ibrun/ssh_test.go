//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// cluster is a directory with a program in the place of ssh, for which a host is a name of its own
// and, with flags of unshare, more that is its own. What it runs for a host has the environment of
// a login.
type cluster struct {
	t   *testing.T
	dir string
	env []string
}

// newCluster: lines is a template of the script's last lines, in which $host, $line and ON, which
// runs the line on the host, mean something.
func newCluster(t *testing.T, flags, lines string) *cluster {
	t.Helper()
	if os.Geteuid() != 0 {
		flags += "r" // a user namespace, in which this user is root
	}
	if err := exec.Command("unshare", "-u"+flags, "true").Run(); err != nil {
		t.Skipf("unshare -u%s: %v", flags, err)
	}
	c := &cluster{t: t, dir: t.TempDir()}
	login := fmt.Sprintf(`unshare -u%s bash -c 'hostname "$0"; echo "Welcome to $0."; exec env -i HOME=/home/of-$0 PATH="$PATH" %s=1 GORACE=atexit_sleep_ms=0 bash -c "$1"' "$host" "$line"`,
		flags, asIbrun)
	script := "#!/bin/bash\nargs=(\"$@\"); host=${args[$#-2]} line=${args[$#-1]}; cd /\nD=" + c.dir + "\n" +
		"printf '%s\\n' \"$*\" >>$D/command.$host; echo $$ >$D/pid.$host\n" + strings.ReplaceAll(lines, "ON", login) + "\n"
	path := filepath.Join(c.dir, "ssh")
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	c.env = []string{"IBCONDUIT_SSH=" + path + " -p 22"}
	return c
}

// direct is a connection that ends with the agent.
const direct = "exec ON"

// wired is one whose ends can be cut, apart from the agent.
const wired = "{ echo $BASHPID >$D/in.$host; exec cat; } | ON | { echo $BASHPID >$D/out.$host; exec cat; }"

func (c *cluster) run(args ...string) (code int, stdout, stderr string) {
	c.t.Helper()
	return finish(c.t, c.env, args...)
}

// pid reads what the script has written.
func (c *cluster) pid(file string) int {
	c.t.Helper()
	text, err := os.ReadFile(filepath.Join(c.dir, file))
	if err != nil {
		c.t.Fatal(err)
	}
	return numbers(c.t, string(text))[0]
}

// No network joins these hosts, and none has even a loopback interface.
func TestRanksOfTwoHostsMeetThroughSSH(t *testing.T) {
	c := newCluster(t, "n", direct)
	code, out, errs := c.run("-H", "a:2,b:1", "-n", "5", "--env", asRank+"=exchange", self)
	var want []string
	for r, host := range []string{"a", "a", "b", "a", "a"} {
		want = append(want, fmt.Sprintf("[%s %d] %d of 5 by launch (IBCONDUIT_RANK)", host, r, r))
	}
	slices.Sort(want)
	if code != 0 || !slices.Equal(lines(out), want) || errs != "" {
		t.Errorf("code %d\n%s%s", code, out, errs)
	}
	sent, _ := os.ReadFile(filepath.Join(c.dir, "command.b"))
	for _, option := range []string{"-p 22 ", "BatchMode=yes", "ConnectTimeout=10", "exec '" + self + "' '--agent'"} {
		if !strings.Contains(string(sent), option) {
			t.Errorf("ssh was given %q, without %s", sent, option)
		}
	}
}

// These hosts differ in name only: shared memory joins them.
func TestAWholeJobOverTwoHosts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("hosts with user namespaces of their own do not share memory")
	}
	code, out, errs := newCluster(t, "", direct).run("-H", "a:2,b:2", "--env", asRank+"=conduit", self)
	if code != 0 || strings.Count(out, " of 4\n") != 4 || errs != "" {
		t.Errorf("code %d\n%s%s", code, out, errs)
	}
}

func TestSurvivorsOfOtherHostsNameTheDeadRank(t *testing.T) {
	code, out, errs := newCluster(t, "n", direct).run("-H", "a:2,b:2", "--env", asRank+"=rank 2 is killed", self)
	if code != 137 || strings.Count(out, "survivor: bootstrap: rank 2 (") != 3 {
		t.Errorf("code %d\n%s%s", code, out, errs)
	}
	if !strings.HasPrefix(errs, "ibrun: rank 2 (pid ") || !strings.Contains(errs, " on b): signal: killed; ending the other 3 ranks\n") {
		t.Errorf("%s", errs)
	}
}

// A rank that never comes is known to those of other hosts by its end.
func TestARankOfAnotherHostThatNeverComes(t *testing.T) {
	c := newCluster(t, "n", direct)
	code, out, errs := c.run("-H", "a,b", "--grace", "40s", "bash", "-c", `test $IBCONDUIT_RANK = 1 && exit 5; exec env `+asRank+`=exchange "$0"`, self)
	if code != 5 || !strings.Contains(out, "[a 0] bootstrap: rank 1 ended before all ranks had arrived: exit status 5") {
		t.Errorf("code %d\n%s%s", code, out, errs)
	}
}

func TestTheSecretCannotBeReadOnAHost(t *testing.T) {
	c := newCluster(t, "", direct)
	code, out, errs := c.run("-H", "a,b", "bash", "-c", `secret=$(cat <&${IBCONDUIT_SECRET_FD%%:*}); echo has ${#secret}
		grep -alFf <(printf '%s\n' "$secret") /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null; echo end`)
	if want := []string{"[a 0] end", "[a 0] has 64", "[b 1] end", "[b 1] has 64"}; code != 0 || !slices.Equal(lines(out), want) || errs != "" {
		t.Errorf("code %d\n%s%s", code, out, errs)
	}
}

func TestWhatAHostIsSent(t *testing.T) {
	c := newCluster(t, "", direct)
	c.env = append(c.env, "IBCONDUIT_TEST_ODD=two\nlines, it's \xff", "TERM=odd", "SSH_AUTH_SOCK=/none", "IBCONDUIT_SECRET=of another job", "XDG_ODD=odd", "TMPDIR="+c.dir)
	cmd := ibrun(t, c.env, "-H", "a", "-x", "TERM", "-x", "K=V=W", "bash", "-c",
		`printf '%s|' "$IBCONDUIT_TEST_ODD" "$TERM" "$SSH_AUTH_SOCK" "$IBCONDUIT_SECRET" "$XDG_ODD" "$TMPDIR" "$HOME" "$K" "$PWD" "$(hostname)" "$@"`, "", "a b", "it's", "", "\xfe\n*")
	cmd.Dir = c.dir
	out, err := cmd.Output()
	want := "two\nlines, it's \xff|odd|||||/home/of-a|V=W|" + c.dir + "|a|a b|it's||\xfe\n*|"
	if err != nil || string(out) != want {
		t.Errorf("%v: %q, want %q", err, out, want)
	}
}

func TestCodesOfHosts(t *testing.T) {
	c := newCluster(t, "", direct)
	for _, try := range []struct {
		ssh    string
		args   []string
		code   int
		stderr string
	}{
		{"", []string{"-H", "a,b", "sh", "-c", "test $IBCONDUIT_RANK = 0 || exit 3"}, 3, " on b): exit status 3"},
		{"", []string{"-H", "a,b", "sh", "-c", "test $IBCONDUIT_RANK = 0 || kill -USR1 $$"}, 138, " on b): signal: user defined signal 1"},
		{"", []string{"-H", "a,b", "nosuch"}, 127, `host b: rank 1: nosuch: exec: "nosuch": executable file not found`},
		{"", []string{"-H", "a,b", "/"}, 126, "host a: rank 0: /: "},
		{"sh -c 'echo no route >&2; exit 255'", []string{"-H", "a", "true"}, 255, "a: no route\nibrun: launch: host a: sh: exit status 255 (no connection"},
		{"sh -c 'exit 127'", []string{"-H", "a", "true"}, 255, "(ibrun must be at the same path on every host: " + self},
		{"echo ibrun-agent 99", []string{"-H", "a", "true"}, 255, "host a: its ibrun is of another version (ibrun-agent 99"},
		{"sh -c 'echo This account is closed.; exit 1'", []string{"-H", "a", "true"}, 255, "sh: exit status 1; it ended before an agent answered, and wrote last: This account is closed.\n"},
		{"sh -c 'echo no route >&2; exit 255'", []string{"-H", "a,b", "true"}, 255, "\nibrun: launch: host "}, // each has a line
		{"yes", []string{"-H", "a", "true"}, 255, "host a: no agent answered"},
		{"/no/such/ssh", []string{"-H", "a", "true"}, 255, "host a: fork/exec /no/such/ssh: no such file"},
	} {
		env := c.env
		if try.ssh != "" {
			script := filepath.Join(t.TempDir(), "sh")
			if strings.HasPrefix(try.ssh, "/") {
				script = try.ssh
			} else if err := os.WriteFile(script, []byte("#!/bin/sh\nexec "+try.ssh+"\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			env = []string{"IBCONDUIT_SSH=" + script}
		}
		code, _, errs := finish(t, env, try.args...)
		if code != try.code || !strings.Contains(errs, try.stderr) {
			t.Errorf("%s %q: code %d, want %d: %s", try.ssh, try.args, code, try.code, errs)
		}
	}
}

// Where one host cannot be used no rank starts on the others.
func TestNoRankStartsBeforeAllHostsAnswer(t *testing.T) {
	c := newCluster(t, "", `test $host = b && exit 255; `+direct)
	code, out, errs := c.run("-H", "a,b", "echo", "ran")
	if code != 255 || out != "" || !strings.Contains(errs, "host b: ssh: exit status 255") || strings.Contains(errs, "host a") {
		t.Errorf("code %d\n%s%s", code, out, errs)
	}
}

func TestStandardInputGoesToRankZeroOfAHost(t *testing.T) {
	c := newCluster(t, "", direct)
	text := strings.Repeat("0123456789abcde\n", 1<<16) // more than all windows and pipes hold
	cmd := ibrun(t, c.env, "-H", "a,b", "--no-prefix", "cat")
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.Output()
	if err != nil || string(out) != text {
		t.Errorf("%v: %d bytes of %d", err, len(out), len(text))
	}
	// A rank that does not read keeps nothing from ending.
	cmd = ibrun(t, c.env, "-H", "a,b", "true")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v: %s", err, out)
	}
}
