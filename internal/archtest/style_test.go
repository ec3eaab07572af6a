package archtest

import (
	"fmt"
	"go/ast"
	"go/build/constraint"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// The limits that keep types, files and names small.
const (
	maxMethods   = 40  // of a type
	maxLines     = 450 // of a production file
	maxTestName  = 45  // with "Test"
	maxCommented = 100 // characters of a line that is a comment
)

// small are the packages whose types and files are held to the limits.
var small = []string{".", "am", "bootstrap", "cache", "coll", "internal/fabric/ibv", "flow", "internal/arrays", "internal/transient", "regcache"}

func sizeRule(tr *tree) (violations []string) {
	for _, p := range tr.sorted() {
		if !slices.Contains(small, p.path) {
			continue
		}
		methods := map[string][]string{} // by type; builds may have the same one in several files
		for _, f := range p.files {
			if f.test {
				continue
			}
			if n := strings.Count(tr.files[f.name], "\n"); n > maxLines {
				violations = append(violations, fmt.Sprintf("%s: %d lines, more than %d", f.name, n, maxLines))
			}
			for _, d := range f.ast.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil {
					of := receiver(fn)
					if !slices.Contains(methods[of], fn.Name.Name) {
						methods[of] = append(methods[of], fn.Name.Name)
					}
				}
			}
		}
		for of, names := range methods {
			if len(names) > maxMethods {
				violations = append(violations, fmt.Sprintf("package %s: %s has %d methods, more than %d", p.path, of, len(names), maxMethods))
			}
		}
	}
	return violations
}

func receiver(fn *ast.FuncDecl) (name string) {
	ast.Inspect(fn.Recv.List[0].Type, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && name == "" {
			name = id.Name // before the type parameters
		}
		return true
	})
	return name
}

func TestTypesAndFilesAreSmall(t *testing.T) {
	lines := func(n int) string { return strings.Repeat("//\n", n-1) } // after the line that has package
	methods := func(n int) (text string) {
		for i := range n {
			text += fmt.Sprintf("func (t *T[P]) M%d() {}\n", i)
		}
		return text
	}
	check(t, sizeRule,
		planted{name: "lines", files: map[string]string{"am/a.go": lines(maxLines + 1)}, want: []string{"am/a.go: 451 lines"}},
		planted{
			name:  "methods",
			files: map[string]string{"a.go": methods(maxMethods), "b.go": "func (T[P]) N() {}"},
			want:  []string{"package .: T has 41 methods"},
		},
		planted{
			name: "at the limits, in two builds, in tests, elsewhere",
			files: map[string]string{
				"am/a.go": methods(maxMethods), "am/b.go": methods(maxMethods), "am/c.go": lines(maxLines - 1),
				"am/a_test.go": lines(maxLines+1) + methods(maxMethods+1), "internal/bench/a.go": lines(maxLines + 1),
			},
		},
	)
}

// withdrawn are words that named mechanisms which are gone, or name one by a picture.
var withdrawn = regexp.MustCompile(`(?i)reserveEarly|bypassable|wakePassing|excuse|purse`)

// onceOnly are the builds in which a suite of planted faults is left out: it runs in the plain one.
var onceOnly = []string{"race", "debug", "biglock"}

func faultRule(tr *tree) (violations []string) {
	for _, p := range tr.sorted() {
		for _, f := range p.files {
			if !f.test || p.path != "internal/faulttest" && !slices.Contains(f.imports(), "internal/faulttest") {
				continue
			}
			first, _, _ := strings.Cut(tr.files[f.name], "\n")
			for _, tag := range onceOnly {
				if e, err := constraint.Parse(first); err != nil || e.Eval(func(t string) bool { return !slices.Contains(onceOnly, t) || t == tag }) {
					violations = append(violations, fmt.Sprintf("%s: plants faults in builds with -tags %s too", f.name, tag))
				}
			}
		}
	}
	return violations
}

func TestFaultsArePlantedInOneStage(t *testing.T) {
	const uses = "package p\n" + `import _ "` + module + `/internal/faulttest"`
	check(t, faultRule,
		planted{name: "no tags", files: map[string]string{"am/a_test.go": uses}, want: []string{"-tags race", "-tags debug", "-tags biglock"}},
		planted{name: "a tag", files: map[string]string{"am/a_test.go": "//go:build linux && !race && !debug\n\n" + uses}, want: []string{"-tags biglock"}},
		planted{name: "right", files: map[string]string{
			"am/a_test.go": "//go:build linux && !race && !debug && !biglock\n\n" + uses, "am/b_test.go": "", "internal/faulttest/a.go": "",
		}},
	)
}

// otherComments are how a comment line begins in files that are not Go, by their extension.
var otherComments = map[string]*regexp.Regexp{
	".c": regexp.MustCompile(`^\s*(/?\*|//) `), ".h": regexp.MustCompile(`^\s*(/?\*|//) `), ".sh": regexp.MustCompile(`^\s*# `),
}

func wordRule(tr *tree) (violations []string) {
	for _, name := range slices.Sorted(maps.Keys(tr.files)) {
		starts := otherComments[path.Ext(name)]
		for i, line := range strings.Split(tr.files[name], "\n") {
			if n := utf8.RuneCountInString(line); starts != nil && n > maxCommented && starts.MatchString(line) {
				violations = append(violations, fmt.Sprintf("%s:%d: a comment line of %d characters, more than %d", name, i+1, n, maxCommented))
			}
		}
	}
	for _, p := range tr.sorted() {
		for _, f := range p.files {
			add := func(n ast.Node, format string, args ...any) {
				violations = append(violations, fmt.Sprintf("%v: ", tr.fset.Position(n.Pos()))+fmt.Sprintf(format, args...))
			}
			lines := strings.Split(tr.files[f.name], "\n")
			for _, group := range f.ast.Comments {
				for _, c := range group.List {
					at := tr.fset.Position(c.Pos())
					line := lines[at.Line-1]
					own := strings.HasPrefix(strings.TrimSpace(line), "//") && !strings.HasPrefix(c.Text, "//go:")
					if n := utf8.RuneCountInString(line); own && n > maxCommented {
						add(c, "a comment line of %d characters, more than %d", n, maxCommented)
					}
					if w := withdrawn.FindString(c.Text); w != "" {
						add(c, "the word %q is withdrawn", w)
					}
				}
			}
			ast.Inspect(f.ast, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.Ident:
					if w := withdrawn.FindString(n.Name); w != "" {
						add(n, "the word %q is withdrawn", w)
					}
				case *ast.FuncDecl:
					if f.test && n.Recv == nil && strings.HasPrefix(n.Name.Name, "Test") && len(n.Name.Name) > maxTestName {
						add(n, "%s has %d characters, more than %d", n.Name.Name, len(n.Name.Name), maxTestName)
					}
				}
				return true
			})
		}
	}
	return violations
}

func TestNamesAndCommentsAreShortAndPlain(t *testing.T) {
	long := "Test" + strings.Repeat("x", maxTestName-3)
	comment := "// " + strings.Repeat("x", maxCommented-2)
	check(t, wordRule,
		planted{name: "test name", files: map[string]string{"verbs/a_test.go": "func " + long + "() {}"}, want: []string{"has 46 characters"}},
		planted{name: "comment", files: map[string]string{"verbs/a.go": comment}, want: []string{"verbs/a.go:2:1: a comment line of 101"}},
		planted{name: "comments of C and shell", files: map[string]string{
			"verbs/a.c": "int x; " + comment + "\n /* x\n" + strings.ReplaceAll(comment, "//", " *"), "hack/a.sh": "\t# " + comment[3:],
		}, want: []string{"hack/a.sh:1: a comment line of 101", "verbs/a.c:3: a comment line of 101"}},
		planted{name: "identifier", files: map[string]string{"verbs/a.go": "var creditPurse int"}, want: []string{`"Purse" is withdrawn`}},
		planted{name: "word", files: map[string]string{"verbs/a.go": "func f() {\n\tf() // no excuses\n}"}, want: []string{`"excuse" is withdrawn`}},
		planted{name: "right", files: map[string]string{
			"verbs/a.go":      "var s = `\n" + comment + "`\n\nvar x int " + comment + "\n\nfunc " + long + "() {}\n" + comment[:maxCommented],
			"verbs/a_test.go": comment[:maxCommented] + "\nfunc " + long[1:] + "() {}",
		}},
	)
}
