//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// gateway is a directory with a program in the place of ssh that goes through one host, which has
// ten places for those that it has not let in, and drops the others. It counts in files.
func gateway(t *testing.T, config string) (dir string, env []string) {
	t.Helper()
	dir = t.TempDir()
	script := `#!/bin/bash
cd ` + dir + `
for a in "$@"; do [ "$a" = -G ] && { ` + config + `; }; done
host=${*: -2:1} line=${*: -1}
echo try >>tries.$host
for place in 0 1 2 3 4 5 6 7 8 9; do
	mkdir place.$place 2>/dev/null || continue
	sleep 1
	rmdir place.$place
	cd / && exec sh -c "$line"
done
echo dropped >>drops
echo 'kex_exchange_identification: Connection closed by remote host' >&2
exit 255
`
	write(t, filepath.Join(dir, "ssh"), script)
	return dir, []string{"IBCONDUIT_SSH=" + filepath.Join(dir, "ssh")}
}

func write(t *testing.T, name, script string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
}

func manyHosts(n int) string {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("n%d", i))
	}
	return strings.Join(names, ",")
}

func TestAJumpHostIsNotAskedForMoreThanItAdmits(t *testing.T) {
	for _, way := range []string{"proxyjump gw", "proxycommand ssh gw -W %h:%p"} {
		dir, env := gateway(t, "echo hostname n0; echo "+way+"; exit 0")
		code, _, errs := finish(t, env, "-H", manyHosts(24), "true")
		if code != 0 || errs != "" {
			t.Errorf("code %d: %s", code, errs)
		}
		if text, err := os.ReadFile(filepath.Join(dir, "drops")); err == nil {
			t.Errorf("%s: %d tries were dropped", way, strings.Count(string(text), "\n"))
		}
	}
}

// Here nothing says that all hosts are behind one.
func TestDroppedConnectionsAreMadeAgain(t *testing.T) {
	dir, env := gateway(t, "echo proxyjump none; exit 0")
	code, _, errs := finish(t, env, "-H", manyHosts(24), "true")
	if code != 0 || errs != "" {
		t.Errorf("code %d: %s", code, errs)
	}
	if _, err := os.Stat(filepath.Join(dir, "drops")); err != nil {
		t.Errorf("no try was dropped: %v", err)
	}
}

func TestTheLastTryNamesMaxStartups(t *testing.T) {
	for _, try := range []struct {
		words string
		tries int
		want  []string
	}{
		{"Connection closed by remote host", 3, []string{"3 times before an agent answered", "raise MaxStartups of its sshd_config"}},
		{"n0: Permission denied (publickey).", 1, []string{"ssh: exit status 255 (no connection"}},
		{"Host key verification failed.", 1, []string{"ssh: exit status 255 (no connection"}},
	} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "ssh"), "#!/bin/sh\ncd "+dir+"\necho try >>tries\necho '"+try.words+"' >&2\nexit 255\n")
		code, _, errs := finish(t, []string{"IBCONDUIT_SSH=" + filepath.Join(dir, "ssh")}, "-H", "n0,localhost", "true")
		text, _ := os.ReadFile(filepath.Join(dir, "tries"))
		if n := strings.Count(string(text), "\n"); code != 255 || n != try.tries || strings.Count(errs, "n0: "+try.words) != 1 {
			t.Errorf("%s: code %d, %d tries, want %d: %s", try.words, code, n, try.tries, errs)
		}
		for _, want := range try.want {
			if !strings.Contains(errs, want) {
				t.Errorf("%s: no %q in %s", try.words, want, errs)
			}
		}
		if try.tries == 1 && strings.Contains(errs, "raise MaxStartups") {
			t.Errorf("%s: %s", try.words, errs)
		}
	}
}
