//go:build linux && cgo && (amd64 || arm64)

package memevents

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// artifacts are what tests compile, once: by file name, the compiler's arguments.
var artifacts = map[string][]string{
	"libmemevents.so": {"./build.sh", "-o", "$OUT"},
	"testmodes.so":    {"./build.sh", "-o", "$OUT", "-DIBC_MEM_TEST_MODES"},
	"counter.so":      {"gcc", "-shared", "-fPIC", "-O2", "-D_GNU_SOURCE", "-o", "$OUT", "testdata/counter.c", "-ldl"},
	"foreign.so":      {"gcc", "-shared", "-fPIC", "-O2", "-fno-builtin", "-D_GNU_SOURCE", "-Wl,-z,now", "-o", "$OUT", "testdata/foreign.c", "-lpthread"},
	"handler.so":      {"gcc", "-std=c11", "-Wall", "-Wextra", "-pedantic", "-Werror", "-shared", "-fPIC", "-I.", "-o", "$OUT", "testdata/handler.c"},
	"handlercc.so":    {"g++", "-x", "c++", "-std=c++11", "-Wall", "-Wextra", "-pedantic", "-Werror", "-shared", "-fPIC", "-I.", "-o", "$OUT", "testdata/handler.c"},
	"ctor.so":         {"gcc", "-shared", "-fPIC", "-O2", "-o", "$OUT", "testdata/ctor.c"},
	"past.so":         {"gcc", "-shared", "-fPIC", "-O2", "-D_GNU_SOURCE", "-DPAST", "-o", "$OUT", "testdata/past.c"},
	"pointers.so":     {"gcc", "-shared", "-fPIC", "-O2", "-o", "$OUT", "testdata/pointers.c"},
	"usespast.so":     {"sh", "-c", "gcc -shared -fPIC -O2 -o $OUT testdata/past.c -Wl,--no-as-needed $(dirname $OUT)/past.so"},
	"bigtls.so":       {"gcc", "-shared", "-fPIC", "-O2", "-ftls-model=initial-exec", "-o", "$OUT", "testdata/bigtls.c"},
	"strict.so":       {"gcc", "-shared", "-fPIC", "-O2", "-fno-builtin", "-D_GNU_SOURCE", "-Wl,-z,lazy", "-o", "$OUT", "testdata/strict_malloc.c"},
	"objects":         {"sh", "-c", "mkdir -p $OUT && for f in ibc_mem_*.c; do gcc -std=c11 -D_GNU_SOURCE -O2 -fPIC -c -o $OUT/${f%.c}.o $f || exit; done"},
	"static":          {"go", "build", "-o", "$OUT", "./testdata/report"},
	"staticcgo":       {"go", "build", "-ldflags", "-linkmode external -extldflags -static", "-o", "$OUT", "./testdata/report"},
	"pie":             {"go", "build", "-buildmode=pie", "-o", "$OUT", "./testdata/report"},
	"cshared.so":      {"go", "build", "-buildmode=c-shared", "-o", "$OUT", "./testdata/cshared"},
	"host":            {"gcc", "-O2", "-D_GNU_SOURCE", "-o", "$OUT", "testdata/host.c", "-ldl"},
	"plugin.so":       {"go", "build", "-buildmode=plugin", "-o", "$OUT", "./testdata/plugin"},
	"pluginhost":      {"go", "build", "-o", "$OUT", "./testdata/pluginhost"},
}

var built struct {
	mu   sync.Mutex
	dir  string
	done map[string]bool
}

func artifact(t testing.TB, name string, env ...string) string {
	t.Helper()
	built.mu.Lock()
	defer built.mu.Unlock()
	if built.dir == "" {
		dir, err := os.MkdirTemp("", "memevents-")
		noError(t, err)
		built.dir, built.done = dir, map[string]bool{}
		cleanup = func() { os.RemoveAll(dir) }
	}
	out := filepath.Join(built.dir, name)
	if built.done[name] {
		return out
	}
	args := slices.Clone(artifacts[name])
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "$OUT", out)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, text)
	}
	built.done[name] = true
	return out
}

func preload(t *testing.T, names ...string) string {
	t.Helper()
	for i, name := range names {
		if !filepath.IsAbs(name) {
			names[i] = artifact(t, name)
		}
	}
	return "LD_PRELOAD=" + strings.Join(names, ":")
}

const (
	onlySymbols = EnvMonitors + "=symbols"
	withPatch   = EnvMonitors + "=symbols,patch"
)
