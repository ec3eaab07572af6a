package metrics

import (
	"runtime/debug"
	"sync"
)

const libraryPath = "github.com/ibconduit/conduit"

// build names the sources of the program: the library's version, the program's commit.
var build = sync.OnceValue(func() Figure {
	version, revision, compiler := "unknown", "unknown", "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		compiler = info.GoVersion
		for _, m := range append(info.Deps, &info.Main) {
			if m.Path == libraryPath {
				version = m.Version
			}
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				revision = s.Value
			}
		}
	}
	return Figure{Name: "build_info", Help: "Always 1; the labels describe the program.", Kind: Gauge, Value: 1,
		Labels: []string{"version", version, "revision", revision, "goversion", compiler}}
})
