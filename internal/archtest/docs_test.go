package archtest

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	link     = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	code     = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
	heading  = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	punct    = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	variable = regexp.MustCompile(`\bIBCONDUIT_[A-Z0-9_]*[A-Z0-9]\b`)
)

// linkRule: what a document links to is there, the section too.
func linkRule(tr *tree) (violations []string) {
	for _, name := range documents(tr) {
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(tr.files[name], ""), -1) {
			target, section, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, ":") { // https:, mailto:
				continue
			}
			to := name
			if target != "" {
				to = path.Join(path.Dir(name), target)
			}
			if !tr.has(to) {
				violations = append(violations, fmt.Sprintf("%s: links to %s, which does not exist", name, m[1]))
			} else if section != "" && !slices.Contains(anchors(tr.files[to]), section) {
				violations = append(violations, fmt.Sprintf("%s: links to %s, which has no such section", name, m[1]))
			}
		}
	}
	return violations
}

func documents(tr *tree) (names []string) {
	for name := range tr.files {
		if path.Ext(name) == ".md" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (tr *tree) has(name string) bool {
	if _, ok := tr.files[name]; ok {
		return true
	}
	for f := range tr.files {
		if strings.HasPrefix(f, strings.TrimSuffix(name, "/")+"/") {
			return true
		}
	}
	return false
}

// anchors are the sections of a document as GitHub names them.
func anchors(text string) (out []string) {
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		a := punct.ReplaceAllString(strings.ToLower(strings.TrimSpace(m[1])), "")
		out = append(out, strings.ReplaceAll(a, " ", "-"))
	}
	return out
}

func TestDocumentsLinkToWhatExists(t *testing.T) {
	check(t, linkRule,
		planted{name: "file", files: map[string]string{"docs/a.md": "[x](b.md)"}, want: []string{"docs/a.md: links to b.md"}},
		planted{name: "section", files: map[string]string{"a.md": "# One: two\n[x](#one-two) [y](#three)"}, want: []string{"#three"}},
		planted{name: "right", files: map[string]string{
			"docs/a.md": "[x](../b.md#the-end) [y](https://example.com/z) [z](sub) `[q](r)`", "b.md": "## The end", "docs/sub/c.go": "",
		}},
	)
}

const environment = "docs/environment.md"

// environmentRule: docs/environment.md has every variable that the code reads or
// sets, and no other.
func environmentRule(tr *tree) (violations []string) {
	documented := variable.FindAllString(tr.files[environment], -1)
	used := map[string]string{} // the first file that has it
	for _, name := range sortedNames(tr.files) {
		if path.Ext(name) == ".md" || strings.HasPrefix(name, "internal/archtest/") {
			continue
		}
		for _, v := range variable.FindAllString(tr.files[name], -1) {
			// A variable between a test and its own child needs no documentation.
			private := strings.HasSuffix(name, "_test.go") && strings.HasPrefix(v, "IBCONDUIT_TEST_")
			if used[v] == "" && !private {
				used[v] = name
			}
		}
	}
	for _, v := range sortedNames(used) {
		if !slices.Contains(documented, v) {
			violations = append(violations, fmt.Sprintf("%s is in %s and not in %s: add the line\n| `%s` | WHAT IT DOES | DEFAULT, UNIT, RANGE |", v, used[v], environment, v))
		}
	}
	slices.Sort(documented)
	for _, v := range slices.Compact(documented) {
		if used[v] == "" {
			violations = append(violations, fmt.Sprintf("%s has %s, which no code mentions: remove it there", environment, v))
		}
	}
	return violations
}

func sortedNames(m map[string]string) (names []string) {
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

func TestEveryEnvironmentVariableIsDocumented(t *testing.T) {
	check(t, environmentRule,
		planted{
			name:  "undocumented",
			files: map[string]string{"a.go": `const e = "IBCONDUIT_SECRET_ART"`, environment: "| `IBCONDUIT_SECRET` |", "x.sh": "$IBCONDUIT_SECRET"},
			want:  []string{"IBCONDUIT_SECRET_ART is in a.go"},
		},
		planted{
			name:  "stale",
			files: map[string]string{environment: "| `IBCONDUIT_GONE` |"},
			want:  []string{"IBCONDUIT_GONE, which no code mentions"},
		},
		planted{
			name: "between a test and its child",
			files: map[string]string{
				"a_test.go": `const role = "IBCONDUIT_TEST_ROLE"`, environment: "",
				"b/b.go": `const role = "IBCONDUIT_TEST_DEVICE"`,
			},
			want: []string{"IBCONDUIT_TEST_DEVICE is in b/b.go"},
		},
		planted{
			name:  "a prefix is no variable",
			files: map[string]string{"a.go": "// all begin with IBCONDUIT_ and so on", environment: ""},
		},
	)
}

// The README's program is the one that is compiled.
func TestTheReadmeShowsTheExampleAsItIs(t *testing.T) {
	tr := project(t)
	for _, v := range exampleRule(tr) {
		t.Error(v)
	}
	for name, files := range map[string]map[string]string{
		"different": {"README.md": "```go\npackage main\n```", "examples/hello/main.go": "package main\n\nvar x int\n"},
		"absent":    {"README.md": "words", "examples/hello/main.go": "package main\n"},
	} {
		if got := exampleRule(plant(t, files)); len(got) != 1 {
			t.Errorf("planted %s: got %q, want one violation", name, got)
		}
	}
}

func exampleRule(tr *tree) []string {
	const example = "examples/hello/main.go"
	text, ok := tr.files[example]
	if !ok {
		return []string{example + " is missing"}
	}
	if !strings.Contains(tr.files["README.md"], "```go\n"+strings.TrimSpace(text)+"\n```") {
		return []string{"README.md does not show " + example + " as it is: copy it there, between ```go and ```"}
	}
	return nil
}
