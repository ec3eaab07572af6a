package archtest

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// floors are the packages from the ground up. A package imports only lower ones.
// "x/..." stands for x and all below it, whose packages may also import each other. A package that
// is named itself stands where that is.
var floors = [][]string{
	0: {"verbs", "memevents", "segment", "internal/alloc", "internal/dist", "flow", "internal/pressure", "bootstrap", "internal/pmix", "internal/fencecheck", "internal/..."},
	1: {"internal/fabric", "regcache"},
	2: {"internal/fabric/ibv", "internal/fabric/shm", "internal/fabric/sim"},
	3: {"am"},
	4: {"internal/env"},
	5: {"coll", "cache", "internal/heap", "internal/arrays", "internal/transient"},
	6: {".", "metrics", "internal/bench", "cmd/internal/..."},
	7: {"cmd/ibbench/...", "cmd/ibrun/...", "examples/...", "hack/..."},
}

// sideways are the imports within one floor.
var sideways = []struct{ from, to, because string }{
	{"internal/bench", ".", "the kernels run over a job"},
	{"metrics", ".", "it reads the counters of a job"},
	{"internal/heap", "coll", "an allocation of all ranks is a collective"},
	{"internal/arrays", "internal/heap", "arrays are blocks of the shared heaps"},
	{"internal/arrays", "cache", "elements here and there are gathered through a worker's cache"},
	{"bootstrap", "internal/pmix", "one of its back ends; apart because it has cgo"},
	{"verbs", "internal/...", "internal is the cellar of floor 0"},
	{"memevents", "internal/...", ""},
	{"segment", "internal/...", ""},
	{"flow", "internal/...", ""},
	{"internal/pressure", "flow", "it reads files for a budget, which does no I/O itself"},
	{"internal/pressure", "internal/...", ""},
	{"bootstrap", "internal/...", ""},
	{"internal/pmix", "internal/...", ""},
	{"internal/fencecheck", "internal/...", ""},
}

// public are the packages that programs import. What they have no use for is internal.
var public = []string{".", "am", "bootstrap", "cache", "coll", "flow", "memevents", "metrics", "regcache", "segment", "verbs"}

// programs are folders of commands, examples, and what the tree's own scripts run.
var programs = regexp.MustCompile(`(^|/)(internal|cmd|examples|hack|deploy)(/|$)`)

func publicRule(tr *tree) (violations []string) {
	for _, p := range tr.sorted() {
		if !programs.MatchString(p.path) && !slices.Contains(public, p.path) {
			violations = append(violations, fmt.Sprintf("package %s can be imported by programs: move it below internal, or add it to public", p.path))
		}
	}
	return violations
}

func TestFewPackagesArePublic(t *testing.T) {
	check(t, publicRule,
		planted{name: "a part", files: map[string]string{"novel/a.go": "", "internal/b/a.go": "", "am/a.go": ""}, want: []string{"package novel can"}},
		planted{name: "a suite", files: map[string]string{"am/amtest/a.go": ""}, want: []string{"package am/amtest can"}},
	)
}

// support says whether a package serves tests only, by its name, as in
// net/http/httptest. Such a package imports what it likes; only tests import it.
func support(p string) bool { return strings.HasSuffix(path.Base(p), "test") }

func matches(pattern, p string) bool {
	if base, ok := strings.CutSuffix(pattern, "/..."); ok {
		return p == base || strings.HasPrefix(p, base+"/")
	}
	return p == pattern
}

func floorOf(p string) (floor int, pattern string) {
	floor = -1
	for i, patterns := range floors {
		for _, x := range patterns {
			if matches(x, p) && (floor < 0 || x == p) {
				floor, pattern = i, x
			}
		}
	}
	return floor, pattern
}

func mayImport(from, to string) bool {
	a, pa := floorOf(from)
	b, pb := floorOf(to)
	switch {
	case a < 0 || b < 0: // reported by itself
		return true
	case a != b:
		return a > b
	case pa == pb && strings.HasSuffix(pa, "/..."):
		return true
	}
	return slices.ContainsFunc(sideways, func(s struct{ from, to, because string }) bool {
		return matches(s.from, from) && matches(s.to, to)
	})
}

func floorRule(tr *tree) (violations []string) {
	for _, p := range tr.sorted() {
		if support(p.path) {
			continue
		}
		own, _ := floorOf(p.path)
		if own < 0 {
			violations = append(violations, fmt.Sprintf("package %s stands on no floor: add it to floors in internal/archtest/floors_test.go", p.path))
			continue
		}
		for _, f := range p.files {
			if f.test {
				continue
			}
			for _, i := range f.imports() {
				if i == "testing" {
					violations = append(violations, f.name+": imports testing: move it into a _test.go file or a package whose name ends in test")
				}
				if tr.pkgs[i] == nil {
					continue
				}
				if support(i) {
					violations = append(violations, fmt.Sprintf("%s: imports %s, which is for tests", f.name, i))
				} else if !mayImport(p.path, i) {
					other, _ := floorOf(i)
					violations = append(violations, fmt.Sprintf("%s: %s (floor %d) imports %s (floor %d): only lower floors may be imported",
						f.name, p.path, own, i, other))
				}
			}
		}
	}
	return violations
}

func TestPackagesImportOnlyLowerFloors(t *testing.T) {
	imp := func(p string) string { return `import _ "` + module + `/` + p + `"` }
	check(t, floorRule,
		planted{
			name:  "upwards",
			files: map[string]string{"verbs/a.go": imp("internal/fabric"), "internal/fabric/a.go": ""},
			want:  []string{"verbs (floor 0) imports internal/fabric (floor 1)"},
		},
		planted{
			name:  "sideways",
			files: map[string]string{"coll/a.go": imp("cache"), "cache/a.go": ""},
			want:  []string{"coll (floor 5) imports cache (floor 5)"},
		},
		planted{
			name:  "in a file of another system",
			files: map[string]string{"segment/a_windows.go": imp("am"), "am/a.go": ""},
			want:  []string{"segment (floor 0) imports am"},
		},
		planted{
			name:  "the root",
			files: map[string]string{"am/a.go": `import _ "` + module + `"`, "a.go": ""},
			want:  []string{"am (floor 3) imports . (floor 6)"},
		},
		planted{
			name:  "from the cellar",
			files: map[string]string{"internal/x/a.go": imp("verbs"), "verbs/a.go": ""},
			want:  []string{"internal/x (floor 0) imports verbs"},
		},
		planted{
			name:  "to a part from below",
			files: map[string]string{"internal/x/a.go": imp("internal/transient"), "internal/transient/a.go": imp("internal/env") + "\n" + imp("coll"), "internal/env/a.go": "", "coll/a.go": ""},
			want:  []string{"internal/transient (floor 5) imports coll (floor 5)", "internal/x (floor 0) imports internal/transient (floor 5)"},
		},
		planted{
			name:  "a package on no floor",
			files: map[string]string{"novel/a.go": ""},
			want:  []string{"package novel stands on no floor"},
		},
		planted{
			name:  "test support in the product",
			files: map[string]string{"am/a.go": imp("internal/xtest"), "internal/xtest/a.go": `import _ "testing"`},
			want:  []string{"internal/xtest, which is for tests"},
		},
		planted{
			name:  "testing in the product",
			files: map[string]string{"am/a.go": `import _ "testing"`},
			want:  []string{"imports testing"},
		},
		planted{
			name: "downwards, named sideways, within hack, from tests",
			files: map[string]string{
				"a.go": imp("internal/fabric/ibv"), "internal/fabric/ibv/a.go": imp("verbs"), "verbs/a.go": imp("internal/x"), "internal/x/a.go": "",
				"internal/bench/a.go": `import _ "` + module + `"`, "hack/a/a.go": imp("hack/b"), "hack/b/b.go": "",
				"verbs/a_test.go": imp("internal/fabric/ibv") + "\n" + `import _ "testing"`,
			},
		},
	)
}

// vague are names that say nothing about what a package holds.
var vague = []string{"util", "utils", "common", "helper", "helpers", "misc", "lib", "base", "shared", "types", "pkg", "src"}

func nameRule(tr *tree) (violations []string) {
	for _, p := range tr.sorted() {
		for _, element := range strings.Split(p.path, "/") {
			if slices.Contains(vague, element) || strings.ToLower(element) != element || strings.Contains(element, "_") {
				violations = append(violations, fmt.Sprintf("package %s: the name %q is vague or not in Go's style", p.path, element))
			}
		}
	}
	return violations
}

func TestPackageNamesSayWhatIsInside(t *testing.T) {
	check(t, nameRule,
		planted{name: "vague", files: map[string]string{"internal/util/a.go": ""}, want: []string{`"util"`}},
		planted{name: "style", files: map[string]string{"fabric/Shm_x/a.go": ""}, want: []string{`"Shm_x"`}},
	)
}
