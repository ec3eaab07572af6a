//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestAFullDiskLeavesEarlierResults(t *testing.T) {
	flags := "-m"
	if os.Geteuid() != 0 {
		flags = "-rm" // a user namespace, in which this user is root
	}
	unshare, err := exec.LookPath("unshare")
	if err == nil {
		err = exec.Command(unshare, flags, "true").Run()
	}
	if err != nil {
		t.Skipf("unshare %s: %v", flags, err)
	}
	results := filepath.Join(t.TempDir(), "r.json")
	if _, errs, code := ibbench(t, "lat", "get", "--fabric", "shm", "--sizes", "8..256K", "--iters", "200", "--warmup", "0", "-q", "-o", results); code != 0 {
		t.Fatal(errs)
	}
	// The earlier file leaves 4 KiB.
	const script = `mount -t tmpfs -o size=16k none "$1" && cd "$1" && head -c 12000 /dev/zero | tr '\0' e >"$2" && shift &&
f=$1 && shift && "$0" "$@"; echo "code $?"; ls -A; tr -d e <"$f" | wc -c`
	for f, args := range map[string]string{
		"o.json":   "lat get --fabric shm --sizes 8..4K --iters 200 --warmup 0 -q -o o.json",
		"o.ndjson": "lat get --fabric shm --sizes 8..4K --iters 200 --warmup 0 -q -o o.ndjson",
		"o.html":   "report " + results + " -o o.html",
		"f.json":   "flow incast -n 2 --payloads 20 --memory 1..64 --quick -q -o f.json",
	} {
		cmd := program(t, append([]string{flags, "sh", "-c", script, os.Args[0], t.TempDir(), f}, strings.Fields(args)...)...)
		cmd.Path, cmd.Args[0] = unshare, "unshare"
		out, errs, _ := finish(t, cmd)
		if !strings.HasSuffix(out, "code 3\n"+f+"\n0\n") || strings.Count(errs, "no space left on device") != 1 || !strings.Contains(errs, f) {
			t.Errorf("%s: %.300s\n%s", args, out[max(len(out)-300, 0):], errs)
		}
	}
}
