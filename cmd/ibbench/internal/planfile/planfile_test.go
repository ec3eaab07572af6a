package planfile

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestKeysHaveTheirLinesAndValues(t *testing.T) {
	got, err := Parse([]byte("# a plan\n[common]\nfabric = 'shm'\n\n[[measure]] # first\ncommand = \"lat  put\"\nsizes = [8, \"4K\"]\niters = 1_000\nack = true\n" +
		"threshold = 2.5\n[[measure]]\ncommand = [\"report\", \"a b.json\"]\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := &Plan{
		Common: []Setting{{3, "fabric", []string{"shm"}}},
		Steps: []Step{
			{5, []string{"lat", "put"}, []Setting{{7, "sizes", []string{"8", "4K"}}, {8, "iters", []string{"1000"}}, {9, "ack", []string{"true"}}, {10, "threshold", []string{"2.5"}}}},
			{11, []string{"report", "a b.json"}, nil},
		},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestErrorsSayWhichLineIsWrong(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    "there is no [[measure]] in it: nothing to do",
		"[common]\nfabric = \"shm\"\n":        "there is no [[measure]] in it: nothing to do",
		"\n\n[[measur]]\n":                    `line 3: unknown table "measur"; the nearest is "measure"`,
		"[comon]\n":                           `line 1: unknown table "comon"; the nearest is "common"`,
		"[measure]\n":                         "line 1: want [common] and [[measure]], a table for each measurement",
		"[[common]]\n":                        "line 1: want [common] and [[measure]], a table for each measurement",
		"fabric = 'shm'\n":                    "line 1: fabric stands above all tables; what all measurements have in common goes below [common]",
		"[common]\ncommand = 'lat'\n":         "line 2: command belongs to a [[measure]]",
		"[[measure]]\n\n[[measure]]\n":        `line 1: this measurement has no command, such as command = "lat put"`,
		"[[measure]]\ncommand = ''\n":         `line 1: this measurement has no command, such as command = "lat put"`,
		"[[measure]]\ncommand = 'lat -o x'\n": "line 1: -o in the command: flags are keys of a measurement, without dashes",
		"[common]\nsizes = []\n":              "line 2: sizes: an empty list",
		"[[measure]]\nsizes = [[8]]\n":        "line 2: sizes: a list in a list",
		"[[measure]]\nwhen = 2026-01-02\n":    `line 2: when: want a text, a number, true, false, or a list of them; a time is a text, as "300ms"`,
		"[[measure]]\nfor = { a = 1 }\n":      `line 2: for: want a text, a number, true, false, or a list of them; a time is a text, as "300ms"`,
	} {
		_, err := Parse([]byte(text))
		if at := new(Error); !errors.As(err, &at) || err.Error() != want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// What is no TOML has the line, too, in the words of the library that reads it.
func TestWhatIsNoTOMLHasItsLine(t *testing.T) {
	for _, text := range []string{"[[measure]]\ncommand = lat\n", "[[measure]]\nsizes = 8\nsizes = 9\n"} {
		_, err := Parse([]byte(text))
		if at := new(Error); !errors.As(err, &at) || at.Line < 2 {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestAByteOrderMarkIsSkipped(t *testing.T) {
	p, err := Parse([]byte("\ufeff[[measure]]\ncommand = 'lat'\n"))
	if err != nil || len(p.Steps) != 1 || p.Steps[0].Line != 1 {
		t.Errorf("%+v, %v", p, err)
	}
}

func FuzzPlansAreReadOrRefused(f *testing.F) {
	f.Add("[common]\nfabric = 'shm'\n[[measure]]\ncommand = 'lat'\nsizes = [8, 9]\n")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := Parse([]byte(s))
		if err == nil && (len(p.Steps) == 0 || len(p.Steps[0].Command) == 0) {
			t.Errorf("%q: %+v", s, p)
		}
	})
}
