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
	fenced = regexp.MustCompile("(?s)```.*?```")
	inline = regexp.MustCompile("`([^`\n]*)`")
	// A word, or words with points between, as Go and C write names; so also the name of a metric
	// and its labels.
	identifier = regexp.MustCompile(`^\(?\*?([A-Za-z_]\w*)\)?((?:\.[A-Za-z_]\w*)*)(?:\(\)|\{.*\})?$`)
	source     = regexp.MustCompile(`[\w./*-]*\w\.(?:go|c|h|sh|md)\b`)
	word       = regexp.MustCompile(`\w+`)
	// The pattern of go test, up to the names of subtests.
	runs     = regexp.MustCompile(`-run[ =]'?([^\s'/` + "`" + `]+)`)
	testFunc = regexp.MustCompile(`(?m)^func (Test\w+)`)
)

// The last column of the vocabulary has names of other projects: where each word comes from.
const vocabulary = "docs/vocabulary.md"

var lastColumn = regexp.MustCompile(`(?m)\|[^|\n]*\|$`)

// mentionRule: the files and the names of the code that documents mention are there. A name that
// was changed everywhere but in a document is found; one that still means something else is not.
func mentionRule(tr *tree) (violations []string) {
	known := map[string]bool{}
	var paths strings.Builder // each file's path between newlines, from the root
	for name, text := range tr.files {
		fmt.Fprintf(&paths, "/%s\n", name)
		if path.Ext(name) != ".md" {
			for _, w := range word.FindAllString(text, -1) {
				known[w] = true
			}
		}
	}
	for _, name := range documents(tr) {
		text := fenced.ReplaceAllString(tr.files[name], "")
		if name == vocabulary {
			text = lastColumn.ReplaceAllString(text, "|")
		}
		for _, f := range source.FindAllString(text, -1) {
			if strings.Contains(f, "*") { // *_datapath.go: a pattern
				continue
			}
			if !strings.Contains(paths.String(), path.Join("/", strings.TrimLeft(f, "./"))+"\n") {
				violations = append(violations, fmt.Sprintf("%s: mentions the file %s, which does not exist", name, f))
			}
		}
		for _, m := range inline.FindAllStringSubmatch(text, -1) {
			if !identifier.MatchString(m[1]) || source.MatchString(m[1]) {
				continue
			}
			stem, _, _ := strings.Cut(strings.TrimPrefix(m[1], "ibconduit_"), "{")
			for _, w := range word.FindAllString(stem, -1) {
				if !known[w] {
					violations = append(violations, fmt.Sprintf("%s: mentions %s, and no source has %s", name, m[1], w))
				}
			}
		}
	}
	return violations
}

func TestDocumentsNameWhatExists(t *testing.T) {
	check(t, mentionRule,
		planted{
			name:  "file",
			files: map[string]string{"docs/a.md": "Get (access.go), `verbs/cq.go`, old_datapath.go", "get/access.go": "", "verbs/cq.go": ""},
			want:  []string{"docs/a.md: mentions the file old_datapath.go"},
		},
		planted{
			name:  "name",
			files: map[string]string{"a.md": "`Job.Close`, `(*lane).Put`, `Job.Shut`", "j.go": "type Job struct{}\nfunc (Job) Close() {}\ntype lane int\nfunc (*lane) Put() {}"},
			want:  []string{"a.md: mentions Job.Shut, and no source has Shut"},
		},
		planted{
			name:  "metric",
			files: map[string]string{"a.md": "`ibconduit_puts_total{result=\"ok\"}`, `ibconduit_gets_total`", "m.go": `const n = "puts_total"`},
			want:  []string{"mentions ibconduit_gets_total"},
		},
		planted{
			name:  "vocabulary",
			files: map[string]string{vocabulary: "| `Gone` | what | `gex_EP_t` |"},
			want:  []string{"mentions Gone"},
		},
		planted{
			name:  "commands are not names",
			files: map[string]string{"a.md": "`make x` and `a-b`\n```\nnever.go `Gone`\n```\n"},
		},
	)
}

// commandRule: each alternative of a -run in a document chooses a test.
func commandRule(tr *tree) (violations []string) {
	var tests []string
	for name, text := range tr.files {
		if strings.HasSuffix(name, "_test.go") {
			for _, m := range testFunc.FindAllStringSubmatch(text, -1) {
				tests = append(tests, m[1])
			}
		}
	}
	for _, name := range documents(tr) {
		for _, m := range runs.FindAllStringSubmatch(tr.files[name], -1) {
			for _, one := range strings.Split(m[1], "|") {
				pattern, err := regexp.Compile(one)
				if err != nil || !slices.ContainsFunc(tests, pattern.MatchString) {
					violations = append(violations, fmt.Sprintf("%s: -run %s chooses no test (%v)", name, one, err))
				}
			}
		}
	}
	return violations
}

func TestCommandsInDocumentsRunTests(t *testing.T) {
	check(t, commandRule,
		planted{
			name:  "no such test",
			files: map[string]string{"a.md": "```\ngo test -run 'Put|Get/shm' .\n```", "a_test.go": "func TestPuts() {}"},
			want:  []string{"a.md: -run Get chooses no test"},
		},
		planted{name: "right", files: map[string]string{"a.md": "`go test -run Put`", "a_test.go": "func TestPuts() {}"}},
	)
}
