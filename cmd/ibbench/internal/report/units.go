package report

import (
	"fmt"
	"math"
	"strconv"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
)

// Shown is a figure for people, with its unit.
func Shown(v float64, unit string) (text, shownUnit string) {
	switch unit {
	case "ns":
		return micros(v), "us"
	case "B/s":
		return mega(v), "MB/s"
	}
	return mega(v), "Mop/s"
}

// shown prints a figure of a result in the unit that shownUnit names.
func (s *Series) shown(v float64) string {
	text, _ := Shown(v, s.Result.Unit)
	return text
}

// shownUnit is the unit of figures for people, of a unit of results.
func shownUnit(unit string) string {
	_, shown := Shown(0, unit)
	return shown
}

// sizeText names the size of a series.
func (s *Series) sizeText() string {
	if s.Op == plan.Barrier {
		return "-"
	}
	return SizeName(s.Op, s.Size)
}

// SizeName is a size as tables have it: a Short has none.
func SizeName(op string, size int64) string {
	if op == plan.AM && size == 0 {
		return "short"
	}
	return sizeText(size)
}

// sizeText prints a size as users write it.
func sizeText(n int64) string {
	for _, u := range []struct {
		shift uint
		name  string
	}{{30, "G"}, {20, "M"}, {10, "K"}} {
		if n >= 1<<u.shift && n&(1<<u.shift-1) == 0 {
			return fmt.Sprintf("%d%s", n>>u.shift, u.name)
		}
	}
	return fmt.Sprint(n)
}

// micros prints ns as us, with as many decimals as a figure has to say.
func micros(ns float64) string {
	us := ns / 1e3
	switch {
	case us < 0.1:
		return fmt.Sprintf("%.4f", us)
	case us < 10:
		return fmt.Sprintf("%.3f", us)
	case us < 1000:
		return fmt.Sprintf("%.2f", us)
	}
	return fmt.Sprintf("%.1f", us)
}

// mega prints millions.
func mega(v float64) string {
	m := v / 1e6
	switch {
	case m < 0.1:
		return fmt.Sprintf("%.6f", m)
	case m < 10:
		return fmt.Sprintf("%.4f", m)
	case m < 1000:
		return fmt.Sprintf("%.2f", m)
	}
	return fmt.Sprintf("%.0f", m)
}

// nanos prints ns with a decimal where it says something.
func nanos(v float64) string {
	if v > -100 && v < 100 {
		return tenths(v)
	}
	return fmt.Sprintf("%.0f", v)
}

func millis(ns float64) string { return hundredths(ns / 1e6) }
func mebi(bytes float64) string {
	if bytes == 0 {
		return ""
	}
	return plain(Round3(bytes / (1 << 20)))
}
func tenths(v float64) string      { return fmt.Sprintf("%.1f", v) }
func hundredths(v float64) string  { return fmt.Sprintf("%.2f", v) }
func thousandths(v float64) string { return fmt.Sprintf("%.3f", v) }
func percents(v float64) string    { return tenths(v) + "%" }
func span(m Metric) string         { return hundredths(m.Low) + " to " + hundredths(m.High) }

// Round3 keeps three decimals, which is what a figure may have.
func Round3(v float64) float64 { return math.Round(v*1000) / 1000 }

// plain writes a figure without an exponent.
func plain(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
