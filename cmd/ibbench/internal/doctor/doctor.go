package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/internal/errtext"
)

// Options say what to look for. The zero value examines everything.
type Options struct {
	// Fabric is "auto", "ibv" or "shm". With "ibv" missing RDMA is a failure, with "shm" it
	// is not looked for. Default: "auto".
	Fabric string
	// Device limits the checks of RDMA to one device. Default: all.
	Device string
	// GID is a GID table index in decimal or "auto", as conduit.Config has it.
	GID string
	// Format is "text" or "json". Default: "text".
	Format string
}

// Schema names the JSON that Run writes.
const Schema = "ibbench-doctor/1"

// Status is the verdict of a check.
type Status string

// The verdicts.
const (
	OK   Status = "ok"
	Warn Status = "warn" // a job runs, but not at its best
	Fail Status = "fail" // a job does not run
)

// Check is one line.
type Check struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
}

// Report is what Run writes.
type Report struct {
	Schema string  `json:"schema"`
	Asked  string  `json:"asked"`  // Options.Fabric
	Fabric string  `json:"fabric"` // the best that works: "ibv", "shm", or "" for none
	Code   int     `json:"code"`
	Checks []Check `json:"checks"`
}

// Run examines this machine, writes the report and returns the exit code. The
// error says that it could not be written.
func Run(ctx context.Context, w io.Writer, opts Options) (code int, err error) {
	r := examine(ctx, thisMachine(), opts)
	if opts.Format == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		err = e.Encode(r)
	} else {
		_, err = io.WriteString(w, r.Text())
	}
	return r.Code, err
}

// examination is one run over one machine.
type examination struct {
	*machine
	opts   Options
	checks []Check
	usable string // the first device with a port that can be used
	unpins bool   // it cannot register enough memory for a segment
}

// examine makes all checks, in the order of the report.
func examine(ctx context.Context, m *machine, opts Options) Report {
	x := &examination{machine: m, opts: opts}
	steps := []func(){
		x.system, x.sharedMemory, x.launcher, x.processors, x.cgroups, x.pressure,
	}
	if opts.Fabric != "shm" {
		steps = append(steps, x.library, x.devices, x.memlock, x.memoryEvents, x.software)
	}
	for _, step := range steps {
		if ctx.Err() != nil {
			x.fail("doctor", "interrupted: "+context.Cause(ctx).Error(), "")
			break
		}
		step()
	}
	return x.report()
}

func (x *examination) report() Report {
	r := Report{Schema: Schema, Asked: cmp.Or(x.opts.Fabric, "auto"), Fabric: "shm", Checks: x.checks}
	if x.usable != "" && !x.unpins {
		r.Fabric = "ibv"
	}
	for _, c := range x.checks {
		if c.Status == Fail {
			r.Code, r.Fabric = 1, ""
		}
	}
	return r
}

func (x *examination) ok(name, detail string) {
	x.checks = append(x.checks, Check{name, OK, detail, ""})
}

func (x *examination) warn(name, detail, remedy string) {
	x.checks = append(x.checks, Check{name, Warn, detail, remedy})
}

func (x *examination) fail(name, detail, remedy string) {
	x.checks = append(x.checks, Check{name, Fail, detail, remedy})
}

// missing reports what RDMA needs and is not there: as bad as the user needs RDMA.
func (x *examination) missing(name, detail, remedy string) {
	if x.opts.Fabric == "ibv" {
		x.fail(name, detail, remedy)
		return
	}
	x.warn(name, detail, remedy)
}

// Text is the report for people.
func (r Report) Text() string {
	var b strings.Builder
	count := map[Status]int{}
	for _, c := range r.Checks {
		count[c.Status]++
		fmt.Fprintf(&b, "%-4s  %-14s  %s\n", c.Status, c.Name, c.Detail)
		if c.Remedy != "" {
			fmt.Fprintf(&b, "%-4s  %-14s  -> %s\n", "", "", c.Remedy)
		}
	}
	verdict := "no job runs here until what failed is mended"
	switch {
	case r.Fabric == "ibv":
		verdict = "jobs run here over RDMA, and over shared memory within the host"
	case r.Fabric == "shm":
		verdict = "jobs run here over shared memory, within the host"
	case r.Asked == "ibv":
		verdict = "no job runs here over RDMA until what failed is mended"
	}
	fmt.Fprintf(&b, "\n%d ok, %s, %s: %s\n", count[OK], errtext.Count(count[Warn], "warning"),
		errtext.Count(count[Fail], "failure"), verdict)
	return b.String()
}

// lockedMemory is what Join compares with RLIMIT_MEMLOCK in a job of two ranks that need verbs.
func lockedMemory() (uint64, error) { return conduit.Config{}.LockedMemory(2) }
