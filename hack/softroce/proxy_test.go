//go:build linux

package softroce_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Behind a proxy apt-get finds nothing without these variables, and sudo clears them.
func TestAptGetUnderSudoHasTheProxies(t *testing.T) {
	for script, args := range map[string][]string{"packages.sh": {"install"}, "../setup.sh": {"build"}} {
		t.Run(filepath.Base(script), func(t *testing.T) {
			bin, log := t.TempDir(), filepath.Join(t.TempDir(), "log")
			fake := func(name, text string) {
				if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			fake("id", "echo 1000")
			fake("dpkg-query", "exit 1") // nothing is installed
			fake("sudo", `echo "$*" >>`+log)
			path, err := filepath.Abs(script)
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), path, args...)
			cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"),
				"http_proxy=http://proxy:3128", "https_proxy=http://proxy:3129", "no_proxy=mirror, localhost")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			text, err := os.ReadFile(log)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(text)) {
				assigned, _, _ := strings.Cut(line, "apt-get")
				for _, want := range []string{"http_proxy=http://proxy:3128 ", "https_proxy=http://proxy:3129 ", "no_proxy=mirror, localhost "} {
					if !strings.Contains(assigned, want) {
						t.Errorf("sudo %q does not have %q", line, want)
					}
				}
				if strings.Contains(assigned, "ftp_proxy") {
					t.Errorf("sudo %q has a proxy that was not set", line)
				}
			}
		})
	}
}
