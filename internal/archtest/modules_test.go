package archtest

import (
	"bytes"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// modules are the dependencies and where they may be imported, tests aside.
// What a library package needs every user of the library gets.
var modules = []struct {
	path string
	in   []string
}{
	{"golang.org/x/sys", []string{"..."}},
	{"golang.org/x/sync", []string{"..."}},
	{"github.com/vishvananda/netlink", []string{"verbs", "metrics", "hack/...", "cmd/...", "internal/..."}},
	{"github.com/vishvananda/netns", []string{"hack/..."}},
	{"github.com/prometheus/procfs", []string{"segment", "flow", "cmd/..."}},
	{"github.com/prometheus/client_golang", []string{"metrics", "cmd/..."}},
	{"github.com/prometheus/client_model", []string{"metrics", "cmd/..."}},
	{"github.com/prometheus/common", []string{"metrics", "cmd/..."}},
	{"github.com/alecthomas/kong", []string{"cmd/..."}},
	{"github.com/HdrHistogram/hdrhistogram-go", []string{"internal/bench", "cmd/..."}},
	{"github.com/pelletier/go-toml/v2", []string{"cmd/..."}},
	{"golang.org/x/term", []string{"cmd/..."}},
	{"golang.org/x/perf", []string{"cmd/..."}},
	{"github.com/aclements/go-moremath", []string{"cmd/..."}},
}

// forTests may be imported by tests and test support only.
var forTests = []string{
	"pgregory.net/rapid", "go.uber.org/goleak", "github.com/google/go-cmp", "github.com/rogpeppe/go-internal", "github.com/google/jsonschema-go",
}

func inModule(pkg, module string) bool { return pkg == module || strings.HasPrefix(pkg, module+"/") }

func thirdParty(i string) bool {
	first, _, _ := strings.Cut(i, "/")
	return strings.Contains(first, ".") && first != "." && !inModule(i, module)
}

func allowed(from, i string) bool {
	for _, m := range modules {
		if inModule(i, m.path) {
			return slices.ContainsFunc(m.in, func(p string) bool { return p == "..." || matches(p, from) })
		}
	}
	return false
}

// known says whether the module is used anywhere at all: tests may then use it too.
func known(i string) bool {
	for _, m := range modules {
		if inModule(i, m.path) {
			return true
		}
	}
	return false
}

func moduleRule(tr *tree) (violations []string) {
	for _, p := range tr.sorted() {
		for _, f := range p.files {
			for _, i := range f.imports() {
				if !thirdParty(i) || allowed(p.path, i) {
					continue
				}
				isTest := f.test || support(p.path)
				if isTest && (known(i) || slices.ContainsFunc(forTests, func(m string) bool { return inModule(i, m) })) {
					continue
				}
				violations = append(violations, fmt.Sprintf("%s: %s may not import %s (see modules in internal/archtest/modules_test.go)", f.name, p.path, i))
			}
		}
	}
	return violations
}

func TestDependenciesStayInTheirPlaces(t *testing.T) {
	check(t, moduleRule,
		planted{
			name:  "prometheus in a library package",
			files: map[string]string{"am/a.go": `import _ "github.com/prometheus/client_golang/prometheus"`},
			want:  []string{"am may not import github.com/prometheus/client_golang"},
		},
		planted{
			name:  "a command-line parser in the root",
			files: map[string]string{"a.go": `import _ "github.com/alecthomas/kong"`},
			want:  []string{". may not import github.com/alecthomas/kong"},
		},
		planted{
			name:  "a test library in the product",
			files: map[string]string{"am/a.go": `import _ "pgregory.net/rapid"`},
			want:  []string{"am may not import pgregory.net/rapid"},
		},
		planted{
			name:  "an unknown module, even in a test",
			files: map[string]string{"am/a_test.go": `import _ "example.com/novel"`},
			want:  []string{"am may not import example.com/novel"},
		},
		planted{
			name: "each in its place",
			files: map[string]string{
				"metrics/a.go": `import _ "github.com/prometheus/client_golang/prometheus"`,
				"am/a_test.go": `import _ "pgregory.net/rapid"`,
				"am/a.go":      `import _ "golang.org/x/sys/unix"`,
			},
		},
	)
}

// What the library drags into a program is seen only through its dependencies'
// own imports, which the sources here do not show.
func TestTheLibraryDragsInNoOtherModule(t *testing.T) {
	var libraries []string
	for _, p := range project(t).sorted() {
		if floor, _ := floorOf(p.path); floor >= 0 && floor < 5 && p.path != "metrics" && p.path != "internal/bench" && !support(p.path) {
			libraries = append(libraries, p.path)
		}
	}
	if len(libraries) == 0 {
		t.Fatal("no library packages found")
	}
	args := []string{"list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}"}
	for _, l := range libraries {
		args = append(args, "./"+l)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = "../.."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &stderr)
	}
	for _, v := range dragged(strings.Fields(string(out))) {
		t.Error(v)
	}
}

func dragged(deps []string) (violations []string) {
	few := []string{"golang.org/x/sys", "golang.org/x/sync", "github.com/vishvananda/netlink", "github.com/vishvananda/netns", "github.com/prometheus/procfs"}
	for _, d := range deps {
		if thirdParty(d) && !slices.ContainsFunc(few, func(m string) bool { return inModule(d, m) }) {
			violations = append(violations, "a library package depends on "+d)
		}
	}
	return violations
}

func TestADraggedInModuleIsFound(t *testing.T) {
	got := dragged([]string{module, module + "/am", "golang.org/x/sys/unix", "github.com/alecthomas/kong"})
	if len(got) != 1 || !strings.Contains(got[0], "kong") {
		t.Errorf("got %q, want the one about kong", got)
	}
}
