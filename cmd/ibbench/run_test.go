package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// runPlan runs a plan in a directory of its own.
func runPlan(t *testing.T, text string, args ...string) (dir, stdout, stderr string, code int) {
	t.Helper()
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "plan.toml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := program(t, append([]string{"run", "plan.toml"}, args...)...)
	cmd.Dir = dir
	stdout, stderr, code = finish(t, cmd)
	return dir, stdout, stderr, code
}

func TestTheExampleOfAPlanRuns(t *testing.T) {
	text, errs, code := ibbench(t, "run", "--example")
	if code != 0 || errs != "" {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	dir, out, errs, code := runPlan(t, strings.Replace(text, `fabric = "auto"`, `fabric = "shm"`, 1))
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	for _, want := range []string{"lat get, fabric shm", "bw get, fabric shm", "join job, fabric shm", "report.html: 6 results"} {
		if !strings.Contains(out, want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
	for _, name := range []string{"lat-get.json", "bw-get.json", "bw-get.csv", "join.json", "report.html"} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !strings.Contains(errs, "ibbench: [1/4] ibbench lat get --sizes=8,4K") {
		t.Errorf("standard error: %s", errs)
	}
}

const twoLines = `[common]
fabric = "shm"
iters = 50
warmup = "0s"
quiet = true

[[measure]]
command = "lat get"
size = 8
assert = ["p50<1ns", "p50<1s"]

[[measure]]
command = "lat amo"
`

// A plan goes on after an assertion that does not hold, and its exit code says so.
func TestOneExitCodeIsThatOfTheWorst(t *testing.T) {
	_, out, errs, code := runPlan(t, twoLines)
	if code != 1 || !strings.Contains(out, "lat amo, fabric shm") || !strings.Contains(errs, "plan.toml: line 7: exit code 1") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
	_, _, errs, code = runPlan(t, strings.Replace(twoLines, "fabric = \"shm\"", "fabric = \"ibv\"\ndevice = \"frob0\"", 1))
	if code != 3 || strings.Count(errs, "exit code 3") != 2 {
		t.Errorf("exit code %d: %s", code, errs)
	}
}

func TestAPlanIsShownAsCommandLines(t *testing.T) {
	_, out, errs, code := runPlan(t, twoLines, "--check")
	want := "ibbench lat get --sizes=8 --assert=p50<1ns --assert=p50<1s --fabric=shm --iters=50 --warmup=0s --quiet=true\nibbench lat amo --fabric=shm --iters=50 --warmup=0s --quiet=true\n"
	if code != 0 || out != want || errs != "" {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
}

// What is common can be taken back, also where no value is as good as none.
func TestAMeasurementTakesBackWhatIsCommon(t *testing.T) {
	_, out, errs, code := runPlan(t, twoLines+"iters = []\nquiet = []\nduration = '1ms'\n", "--check")
	want := "ibbench lat amo --duration=1ms --fabric=shm --warmup=0s\n"
	if code != 0 || !strings.HasSuffix(out, want) || errs != "" {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
}

// All of a plan is checked before the first measurement, which would leave a file here.
func TestWrongPlansAreRefusedWithTheirLine(t *testing.T) {
	const first = "[[measure]]\ncommand = 'lat put'\nsize = 8\niters = 10\nfabric = 'shm'\noutput = 'first.json'\n"
	for text, want := range map[string]string{
		"[[measure]]\ncommand = 'lat'\nszies = 8\n":                           `line 9: lat has no setting "szies"; the nearest is "sizes"`,
		"[common]\nfabrik = 'shm'\n[[measure]]\ncommand = 'lat'\n":            `line 8: no measurement of this plan has a setting "fabrik"; the nearest is "fabric"`,
		"[[measure]]\ncommand = 'lta put'\n":                                  `line 7: unknown command "lta"; the nearest is "lat"`,
		"[[measure]]\ncommand = 'flow jacoby'\n":                              `line 7: unknown command "jacoby"; the nearest is "jacobi"`,
		"[[measure]]\ncommand = 'flow'\n":                                     `line 7: flow what?`,
		"[[measure]]\ncommand = 'serve'\n":                                    `line 7: serve can be no part of a plan`,
		"[[measure]]\ncommand = 'lat put'\nsizes = 'many'\n":                  `line 9: --sizes: size "many"`,
		"[[measure]]\ncommand = 'lat put'\niters = []\n":                      `line 9: iters: an empty list takes back what [common] says`,
		"[[measure]]\ncommand = 'lat put'\niters = 'x'\n":                     `line 9: --iters`,
		"[[measure]]\ncommand = 'lat put'\nassert = ['p50<x']\n":              `line 9: --assert: assertion`,
		"[[measure]]\ncommand = 'lat put'\nsize = 8\nsizes = 8\n":             `line 10: sizes is set above already`,
		"[[measure]]\ncommand = 'join'\nranks = 1\n":                          `line 9: --ranks 1`,
		"[[measure]]\ncommand = 'mr hit'\nregions = -1\n":                     `line 9: --regions`,
		"[[measure]]\ncommand = 'perftest rate'\nrounds = 0\n":                `line 9: --rounds 0`,
		"[[measure]]\ncommand = 'lat put'\npct = 200\n":                       `line 9: --pct`,
		"[[measure]]\ncommand = 'lat put'\noutput = 'first.json'\n":           `line 7: first.json would be overwritten: the measurement of line 1`,
		"[[measure]]\ncommand = 'lat put'\noutput = './first.json'\n":         `line 7: first.json would be overwritten: the measurement of line 1`,
		"[[measure]]\ncommand = 'lat put -o first.json'\n":                    `line 7: -o in the command: flags are keys of a measurement`,
		"[[measure]]\ncommand = 'lat put'\noutput = 'first.frob'\n":           `line 7: -o first.frob: the suffix says the format`,
		"[[measure]]\ncommand = 'coll bcast'\npeer = 'mpi'\nmetrics = ':0'\n": `line 9: --metrics`,
	} {
		dir, _, errs, code := runPlan(t, first+text)
		if code != exitUsage || !strings.Contains(errs, "plan.toml: "+want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: exit code %d, %s, want %s", text, code, errs, want)
		}
		if _, err := os.Stat(filepath.Join(dir, "first.json")); err == nil {
			t.Errorf("%s: the first measurement was begun", text)
		}
	}
	t.Setenv("IBBENCH_OUTPUT", "all.json")
	if _, _, errs, code := runPlan(t, twoLines); code != exitUsage || !strings.Contains(errs, "line 12: all.json would be overwritten") {
		t.Errorf("a file that the environment names: exit code %d, %q", code, errs)
	}
	exits(t, nil, []exit{{"run", 2, "ibbench run --example"}, {"run /nowhere.toml", 2, "/nowhere.toml"}})
}

// A launcher's only rank is as good as none; but it can join once only.
func TestTheOnlyRankOfALauncherRunsAPlan(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plan.toml")
	if err := os.WriteFile(path, []byte(strings.Replace(twoLines, `"p50<1ns", `, "", 1)+"[[measure]]\ncommand = 'join'\nranks = 2\nrounds = 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, errs, code := underLauncher(t, 1, "run", path)
	if code != 0 || !strings.Contains(out, "lat amo, fabric shm") || !strings.Contains(out, "join job, fabric shm") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
	_, errs, code = underLauncher(t, 2, "run", path)
	if code != exitUsage || !strings.Contains(errs, "run it without a launcher") {
		t.Errorf("two ranks: exit code %d: %s", code, errs)
	}
}
