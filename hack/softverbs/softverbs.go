package softverbs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// EnvRequire makes tests fail that cannot run programs with the device, when it is "1".
const EnvRequire = "IBCONDUIT_REQUIRE_SOFTVERBS"

// dir is this folder, looked for from the working directory upwards.
func dir() (string, error) {
	at, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		d := filepath.Join(at, "hack", "softverbs")
		if _, err := os.Stat(filepath.Join(d, "run")); err == nil {
			return d, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("softverbs: hack/softverbs/run is in no folder above")
		}
		at = filepath.Dir(at)
	}
}

// Command returns a command that runs a program with the device. It builds the device if need be,
// when the command starts.
func Command(ctx context.Context, name string, arg ...string) (*exec.Cmd, error) {
	d, err := dir()
	if err != nil {
		return nil, err
	}
	return exec.CommandContext(ctx, filepath.Join(d, "run"), append([]string{name}, arg...)...), nil
}

// Usable says why programs cannot be run with the device here: no compiler, or no mount namespaces.
func Usable(ctx context.Context) error {
	cmd, err := Command(ctx, "true")
	if err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Entry is a line of a table of tests.
type Entry struct{ Package, Test, Reason string }

// Exceptions reads the tests that cannot pass over the device.
func Exceptions() ([]Entry, error) { return table("exceptions.txt") }

// InVM reads the tests that the VM runs, where this device runs all. A test may be "*": all of the
// package that ask for a device.
func InVM() ([]Entry, error) { return table(filepath.Join("..", "softroce", "tests.txt")) }

// table reads a file of entries, one a line.
func table(name string) (all []Entry, err error) {
	d, err := dir()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(d, name))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Fields(line)
		if len(f) < 3 {
			return nil, fmt.Errorf("softverbs: %s: %q is no package, test and reason", name, line)
		}
		all = append(all, Entry{Package: f[0], Test: f[1], Reason: strings.Join(f[2:], " ")})
	}
	return all, nil
}
