package main

import (
	"path/filepath"
	"strings"
	"time"
)

// testRun is what a test binary's arguments say about its outputs and its time.
type testRun struct {
	outputs []string // files and directories that it writes
	timeout time.Duration
}

// Flags of test binaries that name an output file relative to -test.outputdir
// (testing.toOutputDir).
var outputFlags = map[string]bool{"coverprofile": true, "cpuprofile": true, "memprofile": true, "blockprofile": true,
	"mutexprofile": true, "trace": true}

func testFlags(argv []string) (t testRun) {
	var files []string
	outputDir := ""
	for i := 1; i < len(argv); i++ {
		name, ok := strings.CutPrefix(strings.TrimPrefix(argv[i], "-"), "-test.")
		if !ok {
			if name, ok = strings.CutPrefix(argv[i], "-test."); !ok {
				continue
			}
		}
		name, value, hasValue := strings.Cut(name, "=")
		if !hasValue && i+1 < len(argv) {
			value = argv[i+1]
		}
		switch {
		case outputFlags[name]:
			files = append(files, value)
		case name == "outputdir":
			outputDir = value
		case name == "gocoverdir", name == "testlogfile", name == "artifactdir":
			t.outputs = append(t.outputs, value)
		case name == "timeout":
			t.timeout, _ = time.ParseDuration(value) // the test binary complains
		}
	}
	for _, f := range files {
		if !filepath.IsAbs(f) {
			f = filepath.Join(outputDir, f)
		}
		t.outputs = append(t.outputs, f)
	}
	return t
}

func absolute(paths []string) ([]string, error) {
	var list []string
	for _, p := range paths {
		if p == "" {
			continue
		}
		abs, err := filepath.Abs(p)
		if err != nil {
			return nil, err
		}
		list = append(list, abs)
	}
	return list, nil
}
