package peer

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
)

// Output is what a tool printed: its settings and its one row of figures.
type Output struct {
	Settings map[string]string
	Figures  report.Figures // ns, or bytes per second in Mean
	Min      float64        // ns; of a bandwidth 0
	Max      float64        // ns; of a bandwidth its peak
	Size     int64
	Iters    int64
	Errors   int64 // checked operations that left something wrong
}

// Two settings may share a line: " Dual-port       : OFF		Device         : rxe0".
var setting = regexp.MustCompile(`([A-Za-z#][\w#*.\- ]*?)\s+:\s+(\S+)`)

// joined are column names that hold a blank, and the unit as perftest 25.01 calls it: the same 2^20
// bytes.
var joined = strings.NewReplacer("% percentile", "%percentile", "BW peak", "BW_peak", "BW average", "BW_average",
	"[MiB/sec]", "[MB/sec]")

// Parse reads the standard output of a latency or bandwidth tool's client.
func Parse(text string) (*Output, error) {
	o := &Output{Settings: make(map[string]string)}
	var columns []string
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0 || strings.HasPrefix(line, "--"):
		case fields[0] == "#bytes":
			columns = strings.Fields(joined.Replace(line))
		case columns != nil:
			if err := o.row(columns, fields); err != nil {
				return nil, err
			}
			return measured(o)
		default:
			for _, m := range setting.FindAllStringSubmatch(line, -1) {
				o.Settings[strings.TrimSpace(m[1])] = m[2]
			}
		}
	}
	return nil, fmt.Errorf("no table of results in %q", tail(text))
}

// measured refuses a mean that is less than the digits of a tool show: nothing has a ratio to 0.
func measured(o *Output) (*Output, error) {
	if o.Figures.Mean <= 0 {
		return nil, errors.New("the mean is 0: more than its digits show is not known")
	}
	return o, nil
}

// used are the columns that are read.
var used = []string{
	"#bytes", "#iterations", "BW_average[MB/sec]", "BW_peak[MB/sec]",
	"t_min[usec]", "t_max[usec]", "t_typical[usec]", "t_avg[usec]", "99%percentile[usec]",
}

// row reads the figures below the columns' names.
func (o *Output) row(columns, fields []string) error {
	if len(fields) < len(columns) {
		return fmt.Errorf("%d figures below %d columns: %q", len(fields), len(columns), strings.Join(fields, " "))
	}
	v := make(map[string]float64)
	for i, c := range columns {
		f, err := strconv.ParseFloat(fields[i], 64)
		if err != nil || !(f >= 0) || f > 1e15 {
			if slices.Contains(used, c) { // of the others t_stdev may be -nan
				return fmt.Errorf("column %s: %q is not a figure", c, fields[i])
			}
			continue
		}
		v[c] = f
	}
	need := func(names ...string) error {
		for _, n := range names {
			if _, ok := v[n]; !ok {
				return fmt.Errorf("no column %s among %s", n, strings.Join(columns, ", "))
			}
		}
		return nil
	}
	o.Size, o.Iters = int64(v["#bytes"]), int64(v["#iterations"])
	const us, mb = 1e3, 1 << 20 // perftest's MB is 2^20 bytes (perftest_parameters.h: BW_MB)
	if _, ok := v["BW_average[MB/sec]"]; ok {
		o.Figures.Mean, o.Max = v["BW_average[MB/sec]"]*mb, v["BW_peak[MB/sec]"]*mb
		return nil
	}
	if err := need("t_min[usec]", "t_max[usec]", "t_typical[usec]", "t_avg[usec]", "99%percentile[usec]"); err != nil {
		return err
	}
	o.Min, o.Max = v["t_min[usec]"]*us, v["t_max[usec]"]*us
	o.Figures = report.Figures{P50: v["t_typical[usec]"] * us, Mean: v["t_avg[usec]"] * us,
		P99: v["99%percentile[usec]"] * us}
	return nil
}

// tail is the end of a text, for messages.
func tail(text string) string {
	text = strings.TrimSpace(text)
	if n := len(text); n > 200 {
		return "..." + text[n-200:]
	}
	return text
}
