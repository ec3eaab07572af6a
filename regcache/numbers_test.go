package regcache

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
)

// The cases of docs/developing.md.
func TestEveryCaseHasATest(t *testing.T) {
	name := regexp.MustCompile(`(?m)^func Test\w*?((?:_\d\d)+)\(`)
	digits := regexp.MustCompile(`\d\d`)
	have := map[int]bool{}
	for _, pattern := range []string{"*_test.go", "../memevents/*_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range name.FindAllStringSubmatch(string(text), -1) {
				for _, d := range digits.FindAllString(m[1], -1) {
					n, _ := strconv.Atoi(d)
					have[n] = true
				}
			}
		}
	}
	for n := 1; n <= 26; n++ {
		if !have[n] {
			t.Errorf("case %02d has no test", n)
		}
	}
}
