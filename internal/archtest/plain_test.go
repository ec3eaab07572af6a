package archtest

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// The limits of plain text.
const (
	maxOdd  = 3   // odd forms in 1,000 words of the comments of a package
	maxCode = 120 // characters of a line of production code
)

// odd are the forms that make comments hard to read: pronouns for code, and clauses in the place of
// nouns.
var odd = regexp.MustCompile(`(?i)\b(who|whoever|nobody|whom|whose|somebody|anybody|told|tells?|asks?|asked|` +
	`that of|those of|what is|what was|what the)\b`)

var (
	commentLine = regexp.MustCompile(`^\s*(?://|/?\*)\s?(.*)$`)
	plainWord   = regexp.MustCompile(`[A-Za-z']+`)
)

// oddYet are the packages with more odd forms, and how many; longYet those with longer lines of
// code, and how many. A number only goes down.
var (
	oddYet = map[string]int{
		".": 79, "cache": 89, "hack/rdmatests": 3, "hack/softroce": 8, "hack/softroce/cmd/vm": 8,
		"hack/softroce/internal/qemu": 2, "hack/softroce/internal/wire": 3, "hack/softverbs/device": 40,
		"hack/twohosts": 2, "internal/bench": 31, "internal/fabric/sim": 12, "internal/fencecheck": 30,
	}
	longYet = map[string]int{
		".": 14, "cache": 1, "cmd/ibbench": 70, "cmd/ibbench/internal/doctor": 16,
		"cmd/ibbench/internal/measure": 1, "cmd/ibbench/internal/mr": 7, "cmd/ibbench/internal/peer": 3,
		"cmd/ibbench/internal/report": 6, "cmd/ibrun": 12, "flow": 1, "hack/crowd": 8, "hack/softroce": 4,
		"hack/softroce/cmd/vm": 4, "hack/softroce/internal/image": 6, "hack/softroce/internal/qemu": 2,
		"hack/softverbs/device": 43, "internal/bench": 1, "internal/fencecheck": 2,
	}
)

// plainRule holds production code and its comments to the limits.
func plainRule(tr *tree) (violations []string) {
	type count struct{ words, odd, long int }
	counts := map[string]*count{}
	for name, text := range tr.files {
		dir := path.Dir(name)
		if ext := path.Ext(name); ext != ".go" && ext != ".c" && ext != ".h" || strings.HasSuffix(name, "_test.go") || support(dir) {
			continue
		}
		c := counts[dir]
		if c == nil {
			c = &count{}
			counts[dir] = c
		}
		for line := range strings.Lines(text) {
			if m := commentLine.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil && !directive(line) {
				c.words += len(plainWord.FindAllString(m[1], -1))
				c.odd += len(odd.FindAllString(m[1], -1))
			} else if utf8.RuneCountInString(line) > maxCode+1 { // with the line feed
				c.long++
			}
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(counts)) {
		c := counts[dir]
		if most := max(1, c.words*maxOdd/1000, oddYet[dir]); c.odd > most {
			violations = append(violations, fmt.Sprintf("%s: %d odd forms in %d words of comments, more than %d: write the noun", dir,
				c.odd, c.words, most))
		}
		if c.long > longYet[dir] {
			violations = append(violations, fmt.Sprintf("%s: %d lines of code are longer than %d characters, where %d may be", dir,
				c.long, maxCode, longYet[dir]))
		}
	}
	for _, yet := range []map[string]int{oddYet, longYet} {
		for dir := range yet {
			if counts[dir] == nil && tr.pkgs["internal/archtest"] != nil {
				violations = append(violations, dir+": it is listed as an exception, and is gone")
			}
		}
	}
	return violations
}

func directive(line string) bool {
	return strings.HasPrefix(line, "//go:") || strings.HasPrefix(line, "//export")
}

func TestCodeIsPlain(t *testing.T) {
	few := "// " + strings.Repeat("word ", 999)
	long := "var x = `" + strings.Repeat("x", maxCode) + "`"
	check(t, plainRule,
		planted{name: "odd", files: map[string]string{"x/a.go": few + "\n// who asks what is told, that of whom, nobody knows"},
			want: []string{"x: 7 odd forms in 1009 words"}},
		planted{name: "odd in C", files: map[string]string{"x/a.go": "", "x/a.c": "/* Who\n * asks. */"}, want: []string{"x: 2 odd forms"}},
		planted{name: "long", files: map[string]string{"x/a.go": long}, want: []string{"x: 1 lines of code"}},
		planted{name: "right", files: map[string]string{
			"x/a.go": few + "\n// who asks whom", "x/a_test.go": "// who asks whom what is told\n" + long, "xtest/a.go": long, "y/a.go": long[:maxCode-1] + "`",
		}},
	)
}
