package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const pkg = module + "/verbs"

// stream writes events as go test -json does; P is the package under test.
func stream(lines ...string) string {
	return strings.ReplaceAll(strings.Join(lines, "\n"), `"P"`, `"`+pkg+`"`) + "\n"
}

func ended(action, test string) string {
	return `{"Action":"` + action + `","Package":"P","Test":"` + test + `"}`
}

func wrote(test, text string) string {
	return `{"Action":"output","Package":"P","Test":"` + test + `","Output":"` + text + `\n"}`
}

func run(test string) string { return `{"Action":"run","Package":"P","Test":"` + test + `"}` }

func TestStage(t *testing.T) {
	for _, c := range []struct {
		name     string
		in       string
		ok       bool
		contains []string
		lacks    []string
	}{
		{
			name:     "output of a passing test is dropped",
			in:       stream(run("TestA"), wrote("TestA", "chatter"), ended("pass", "TestA"), `{"Action":"pass","Package":"P"}`),
			ok:       true,
			contains: []string{"ok   verbs", "1 passed"},
			lacks:    []string{"chatter"},
		}, {
			name: "output of a failing test is shown",
			in: stream(run("TestA"), wrote("TestA", "got 1, want 2"), ended("fail", "TestA"),
				`{"Action":"fail","Package":"P"}`),
			contains: []string{"--- FAIL: verbs.TestA", "got 1, want 2", "FAIL verbs", "1 failed"},
		}, {
			name:     "a build error fails the stage",
			in:       stream(`{"ImportPath":"P","Action":"build-output","Output":"x.go:1: syntax error\n"}`, `{"Action":"fail","Package":"P","FailedBuild":"P"}`),
			contains: []string{"syntax error", "FAIL verbs", "1 failed"},
		}, {
			name: "a failing TestMain fails the stage although every test passed",
			in: stream(run("TestA"), ended("pass", "TestA"), `{"Action":"output","Package":"P","Output":"leaked: qp\n"}`,
				`{"Action":"fail","Package":"P"}`),
			contains: []string{"leaked: qp", "1 passed   1 failed"},
		}, {
			name:     "a binary that ends inside a test fails the stage even with status 0",
			in:       stream(run("TestA"), wrote("TestA", "before the exit"), `{"Action":"pass","Package":"P"}`),
			contains: []string{"verbs.TestA did not end", "before the exit", "1 failed"},
		}, {
			name:     "a test that runs when go test is killed is named",
			in:       stream(`{"Action":"pass","Package":"other"}`, run("TestHangs"), wrote("TestHangs", "waiting")),
			contains: []string{"verbs.TestHangs did not end", "waiting"},
		}, {
			name: "nothing tested is a failure",
			in:   "",
		}, {
			name:     "a message of the go command is passed through",
			in:       "go: no such package\n" + stream(`{"Action":"pass","Package":"P"}`),
			ok:       true,
			contains: []string{"go: no such package"},
		}, {
			name:     "a benchmark is not counted as a test",
			in:       stream(run("BenchmarkA"), `{"Action":"pass","Package":"P"}`),
			ok:       true,
			contains: []string{"0 passed   0 failed"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			ok, err := runStage(strings.NewReader(c.in), &out, "race", "", "")
			if got := ok && err == nil; got != c.ok {
				t.Errorf("ok = %v (%v), want %v", got, err, c.ok)
			}
			for _, s := range c.contains {
				if !strings.Contains(out.String(), s) {
					t.Errorf("output lacks %q:\n%s", s, &out)
				}
			}
			for _, s := range c.lacks {
				if strings.Contains(out.String(), s) {
					t.Errorf("output contains %q:\n%s", s, &out)
				}
			}
		})
	}
}

// A skip that no table has is a failure, of a subtest too.
func TestOnlyTestsOfTheTablesMaySkip(t *testing.T) {
	table := filepath.Join(t.TempDir(), "skips")
	if err := os.WriteFile(table, []byte("# verbs TestC no\n\nverbs TestA it knows why\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	in := func(tests ...string) string {
		var lines []string
		for _, name := range tests {
			lines = append(lines, run(name), wrote(name, "no device"), ended("skip", name))
		}
		return stream(append(lines, `{"Action":"pass","Package":"P"}`)...)
	}
	for tests, want := range map[string]string{"TestA": "", "TestA/x": "", "TestA TestB": "verbs.TestB skips", "TestC/x": "verbs.TestC/x skips"} {
		var out bytes.Buffer
		ok, err := runStage(strings.NewReader(in(strings.Fields(tests)...)), &out, "device", "", table)
		if err != nil || ok != (want == "") || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %v, %v: %s", tests, ok, err, &out)
		}
	}
	if err := os.WriteFile(table, []byte("verbs TestA\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := runStage(strings.NewReader(in("TestA")), &bytes.Buffer{}, "device", "", table); err == nil {
		t.Error("a line without a reason is taken")
	}
}

func TestTotalCountsEachTestOnceAcrossStages(t *testing.T) {
	dir := t.TempDir()
	native, vm := filepath.Join(dir, "native"), filepath.Join(dir, "vm")
	var discard bytes.Buffer
	runStage(strings.NewReader(stream(
		run("TestPure"), ended("pass", "TestPure"),
		run("TestDevice"), wrote("TestDevice", "    a_test.go:3: no RDMA device"), ended("skip", "TestDevice"),
		run("TestNowhere"), wrote("TestNowhere", "    a_test.go:9: needs a GPU"), ended("skip", "TestNowhere"),
		run("TestBroken"), ended("pass", "TestBroken"),
		`{"Action":"pass","Package":"P"}`)), &discard, "native", native, "")
	runStage(strings.NewReader(stream(
		run("TestPure"), ended("pass", "TestPure"),
		run("TestDevice"), ended("pass", "TestDevice"),
		run("TestBroken"), ended("fail", "TestBroken"),
		`{"Action":"fail","Package":"P"}`)), &discard, "vm", vm, "")

	var out bytes.Buffer
	ok, err := runTotal(&out, []string{native, vm})
	if ok || err != nil {
		t.Errorf("ok = %v, %v; want a failure and no error", ok, err)
	}
	want := "failed in vm: verbs.TestBroken\n" +
		"skipped everywhere: verbs.TestNowhere: a_test.go:9: needs a GPU\n" +
		"2 passed, 1 failed, 1 skipped\n"
	if out.String() != want {
		t.Errorf("got:\n%swant:\n%s", &out, want)
	}
}

func TestTotalOfNothingIsAFailure(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if ok, err := runTotal(&out, []string{empty}); ok || err == nil {
		t.Errorf("ok = %v, err = %v; want a failure", ok, err)
	}
	if ok, err := runTotal(&out, []string{empty + "-missing"}); ok || err == nil {
		t.Errorf("a missing file: ok = %v, err = %v; want a failure", ok, err)
	}
}

func TestSlowestAreTopLevelTestsOfAllStages(t *testing.T) {
	all := []result{{Test: "TestA", Stage: "race", Seconds: 2}, {Test: "TestB/part", Seconds: 9}, {Test: "TestA", Stage: "vm", Seconds: 5}, {Test: "TestC", Seconds: .5}, {Test: "TestD", Seconds: 1}}
	var got []string
	for _, r := range slowest(all, 2) {
		got = append(got, r.Stage+r.Test)
	}
	if want := []string{"vmTestA", "raceTestA"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
