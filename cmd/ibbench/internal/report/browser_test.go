//go:build !race && !debug && !biglock

package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
)

// probe looks at the page in a browser: what it drew, and where.
const probe = `<script>
const seen = { bars: [...document.querySelectorAll('.bar div')].map(e => e.getBoundingClientRect().width) };
seen.fetched = performance.getEntriesByType('resource').map(e => e.name);
document.body.setAttribute('data-seen', JSON.stringify(seen));
</script>`

func TestTheBrowserDrawsWhatWasMeasured(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "page.html")
	if err := os.WriteFile(name, []byte(strings.Replace(written(t), "</body>", probe+"</body>", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`data-seen="([^"]*)"`).FindStringSubmatch(browse(t, dir, "--dump-dom", name))
	if m == nil {
		t.Fatal("the browser did not run the probe")
	}
	var seen struct {
		Bars    []float64
		Fetched []string
	}
	if err := json.Unmarshal([]byte(html.UnescapeString(m[1])), &seen); err != nil {
		t.Fatal(err)
	}
	if len(seen.Fetched) > 0 || len(seen.Bars) != 10 {
		t.Fatalf("%d bars; fetched: %q", len(seen.Bars), seen.Fetched)
	}
	for i, w := range seen.Bars[:4] { // of medians of 1 to 4 us
		if want := seen.Bars[3] * float64(i+1) / 4; w < want-1 || w > want+1 || w < 10 {
			t.Errorf("bar %d is %v wide, want %v", i, w, want)
		}
	}
}

// A browser prints a page that is too wide for its paper in smaller letters, down to two thirds.
func TestTheWidestTableFitsOnPaper(t *testing.T) {
	all := pageSeries()
	s := all[slices.IndexFunc(all, func(s *Series) bool { return s.Kind == KindPerftest })]
	s.Op, s.Plan.Op, s.Result.Count, s.Result.P["99"], s.Result.P["99.9"] = plan.AM, plan.AM, 2400000, 12345, 123456
	s.Peers = append(s.Peers, &Peer{Place: "ucx", Result: s.Peer().Result})
	s.Set("ratio.best", 2.98)
	s.Set("goal.ratio", 1.8)
	s.SetText("goal.verdict", Open)
	s.Peer().Tool = "ib_atomic_lat"
	var b bytes.Buffer
	if err := NewPage("", []*Series{s}).Write(&b); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	name := filepath.Join(dir, "page.html")
	page := strings.Replace(strings.Replace(b.String(), "@media print", "@media screen", 1), "</body>",
		`<script>document.title = 'right: ' + Math.round(document.querySelector('table').getBoundingClientRect().right)</script></body>`, 1)
	if err := os.WriteFile(name, []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
	const paper = 717 // A4 in CSS pixels, less margins of 1 cm
	var right int
	m := regexp.MustCompile(`right: (\d+)`).FindStringSubmatch(browse(t, dir, "--window-size="+fmt.Sprint(paper)+",1000", "--dump-dom", name))
	if m != nil {
		_, _ = fmt.Sscan(m[1], &right)
	}
	if right < paper/2 || right > paper*3/2 {
		t.Errorf("the table ends at %d of %d", right, paper)
	}
}

// browse runs a browser on a file, without a network.
func browse(t *testing.T, dir string, args ...string) string {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("IBCONDUIT_REQUIRE_CHROMIUM") == "1" {
			t.Fatal(err)
		}
		t.Skip("chromium is not installed; make test installs it")
	}
	file := &args[len(args)-1]
	*file = "file://" + *file
	args = append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--user-data-dir=" + filepath.Join(dir, "profile"), "--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=5000"}, args...)
	cmd := exec.CommandContext(t.Context(), program, args...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("chromium: %v\n%s", err, errs.String())
	}
	return string(out)
}
