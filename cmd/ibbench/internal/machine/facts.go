package machine

import (
	"bufio"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// Facts are what one rank knows of itself, and sends to the others.
type Facts struct {
	Host       string `json:"host"`
	Kernel     string `json:"kernel"`
	Arch       string `json:"arch"`
	CPU        string `json:"cpu"`
	CPUs       int    `json:"cpus"` // that the process may run on
	GoMaxProcs int    `json:"gomaxprocs"`
	Go         string `json:"go"`
	Commit     string `json:"commit"`
	Modified   bool   `json:"modified"`
}

// Local collects the facts of this process.
func Local() Facts {
	f := Facts{
		Arch: runtime.GOARCH, CPU: cpuModel("/proc/cpuinfo"), CPUs: runtime.NumCPU(),
		GoMaxProcs: runtime.GOMAXPROCS(0), Go: strings.TrimPrefix(runtime.Version(), "go"),
	}
	f.Host, _ = os.Hostname()
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		f.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				f.Commit = s.Value
			case "vcs.modified":
				f.Modified = s.Value == "true"
			}
		}
	}
	return f
}

// cpuModel reads the processor's name: "model name" on x86; arm64 has none.
func cpuModel(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if name, value, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
