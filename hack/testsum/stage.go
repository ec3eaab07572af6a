package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/ibconduit/conduit/internal/atomicfile"
)

// event is a line of go test -json: the fields of cmd/test2json, and of the
// build events that cmd/go mixes in ("go help buildjson").
type event struct {
	Action      string
	Package     string
	ImportPath  string
	Test        string
	Elapsed     float64
	Output      string
	FailedBuild string
}

// result is how one test ended in one stage. An empty Test stands for the
// package itself: its build, its TestMain, a panic outside of any test.
type result struct {
	Stage, Package, Test string
	Outcome              outcome
	Reason               string  `json:",omitempty"` // of a skip
	Seconds              float64 `json:",omitempty"`
}

type outcome string

const (
	passed  outcome = "pass"
	failed  outcome = "fail"
	skipped outcome = "skip"
)

// maxOutput bounds what is kept of one test's output: its end, where it says why.
const maxOutput = 256 << 10

// stage follows one run of go test.
type stage struct {
	name     string
	w        io.Writer
	output   map[[2]string]string // by package and test, of those still running
	running  map[[2]string]bool
	count    map[string]map[outcome]int // by package
	results  []result
	packages int
	maySkip  map[[2]string]bool // nil: all may
}

func runStage(r io.Reader, w io.Writer, name, file, skips string) (ok bool, err error) {
	s := &stage{
		name: name, w: w,
		output:  map[[2]string]string{},
		running: map[[2]string]bool{},
		count:   map[string]map[outcome]int{},
	}
	if skips != "" {
		if s.maySkip, err = readSkips(strings.Split(skips, ",")); err != nil {
			return false, err
		}
	}
	if err := s.read(r); err != nil {
		return false, err
	}
	s.endTests("") // go test itself was killed
	if file != "" {
		if err := writeResults(file, s.results); err != nil {
			return false, err
		}
	}
	if s.packages == 0 {
		return false, fmt.Errorf("stage %q: no package was tested", name)
	}
	for _, r := range s.results {
		if r.Outcome == failed {
			return false, nil
		}
	}
	return true, nil
}

func (s *stage) read(r io.Reader) error {
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 16<<20)
	for sc.Scan() {
		var e event
		if json.Unmarshal(sc.Bytes(), &e) != nil || e.Action == "" {
			s.printf("%s\n", sc.Text()) // a message of the go command itself
			continue
		}
		s.handle(e)
	}
	return sc.Err()
}

func (s *stage) handle(e event) {
	key := [2]string{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		s.printf("%s", e.Output)
	case "run":
		s.running[key] = true
	case "output":
		text := s.output[key] + e.Output
		if len(text) > maxOutput {
			text = text[len(text)-maxOutput/2:]
		}
		s.output[key] = text
	case "pass", "fail", "skip":
		if e.Test == "" {
			s.endPackage(e)
		} else if !strings.HasPrefix(e.Test, "Benchmark") || e.Action == "fail" {
			s.endTest(e)
		}
		delete(s.output, key)
		delete(s.running, key)
	}
}

func (s *stage) endTest(e event) {
	text := s.output[[2]string{e.Package, e.Test}]
	r := result{Package: e.Package, Test: e.Test, Outcome: outcome(e.Action), Seconds: e.Elapsed}
	switch r.Outcome {
	case failed:
		s.printf("--- FAIL: %s.%s (%.2fs)\n%s", short(e.Package), e.Test, e.Elapsed, text)
	case skipped:
		r.Reason = reason(text)
		name, _, _ := strings.Cut(e.Test, "/")
		if s.maySkip != nil && !s.maySkip[[2]string{short(e.Package), name}] {
			r.Outcome = failed
			s.printf("--- FAIL: %s.%s skips, and is in no table of those that may: %s\n", short(e.Package), e.Test, r.Reason)
		}
	}
	s.add(r)
}

// endPackage accounts for what has no test of its own to blame: a build error, a
// failing TestMain, a binary that ended in the middle of a test.
func (s *stage) endPackage(e event) {
	s.endTests(e.Package)
	if e.Action == "skip" { // no test files
		s.packages++
		return
	}
	counts := s.count[e.Package]
	if e.Action == "fail" {
		if counts[failed] == 0 {
			s.add(result{Package: e.Package, Outcome: failed})
			counts = s.count[e.Package]
		}
		s.printf("%s", s.output[[2]string{e.Package, ""}])
	}
	s.packages++
	word := "ok  "
	if counts[failed] > 0 {
		word = "FAIL"
	}
	s.printf("%s %-32s %4d passed %3d failed %3d skipped %7.1fs\n", word, short(e.Package),
		counts[passed], counts[failed], counts[skipped], e.Elapsed)
}

// endTests fails the tests of a package, or of all, that have begun and not ended.
func (s *stage) endTests(pkg string) {
	for key := range s.running {
		if pkg != "" && key[0] != pkg {
			continue
		}
		delete(s.running, key)
		if !strings.HasPrefix(key[1], "Benchmark") {
			s.printf("--- FAIL: %s.%s did not end\n%s", short(key[0]), key[1], s.output[key])
			s.add(result{Package: key[0], Test: key[1], Outcome: failed})
		}
	}
}

func (s *stage) add(r result) {
	r.Stage = s.name
	s.results = append(s.results, r)
	if s.count[r.Package] == nil {
		s.count[r.Package] = map[outcome]int{}
	}
	s.count[r.Package][r.Outcome]++
}

// printf marks the first line of what it prints with the stage.
func (s *stage) printf(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if text != "" {
		fmt.Fprintf(s.w, "[%s] %s", s.name, text)
	}
}

// reason is the text of a skip: what stands between the lines of the framework.
func reason(output string) string {
	var words []string
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") {
			continue
		}
		words = append(words, line)
	}
	return strings.Join(words, " ")
}

const module = "github.com/ibconduit/conduit"

func short(pkg string) string {
	if pkg == module {
		return "conduit"
	}
	return strings.TrimPrefix(pkg, module+"/")
}

func writeResults(file string, results []result) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
		return err
	}
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	for _, r := range results {
		if err := enc.Encode(r); err != nil {
			return err
		}
	}
	return atomicfile.WriteFile(file, text.Bytes(), 0o666)
}

// readSkips reads the tests that may skip: package, test and reason in a line.
func readSkips(files []string) (map[[2]string]bool, error) {
	may := map[[2]string]bool{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) == 0 || strings.HasPrefix(f[0], "#") {
				continue
			}
			if len(f) < 3 {
				return nil, fmt.Errorf("%s: %q: want a package, a test and a reason", name, strings.TrimSpace(line))
			}
			pkg := module + "/" + f[0]
			if f[0] == "." {
				pkg = module
			}
			may[[2]string{short(pkg), f[1]}] = true
		}
	}
	return may, nil
}
