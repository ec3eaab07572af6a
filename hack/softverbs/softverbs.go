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

// Exception is a test that cannot pass over the device.
type Exception struct{ Package, Test, Reason string }

// Exceptions reads the table, exceptions.txt: a test a line.
func Exceptions() ([]Exception, error) {
	d, err := dir()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(d, "exceptions.txt"))
	if err != nil {
		return nil, err
	}
	var all []Exception
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Fields(line)
		if len(f) < 3 {
			return nil, fmt.Errorf("softverbs: exceptions.txt: %q is no package, test and reason", line)
		}
		all = append(all, Exception{Package: f[0], Test: f[1], Reason: strings.Join(f[2:], " ")})
	}
	return all, nil
}
