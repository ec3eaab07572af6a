package conduit

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"
)

// environment reads typed variables and keeps the first error. Its errors name the
// variable: the user has not set the field.
type environment struct {
	lookup func(string) (string, bool)
	err    error
}

func (e *environment) str(key, def string) string {
	if v, ok := e.lookup(key); ok && v != "" {
		return v
	}
	return def
}

func (e *environment) fail(key, value, want string) {
	if e.err == nil {
		e.err = &ConfigError{Field: key, Value: strconv.Quote(value), Want: want}
	}
}

func (e *environment) checked(key, def string, valid func(string) bool, want string) string {
	v := e.str(key, def)
	if !valid(v) {
		e.fail(key, v, want)
	}
	return v
}

// bit is a switch that is off by default.
func (e *environment) bit(key string) bool {
	return e.checked(key, "0", func(v string) bool { return v == "0" || v == "1" }, "0 or 1") == "1"
}

func (e *environment) integer(key string, def, least, most int) int {
	v := e.str(key, "")
	if v == "" {
		return def
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < least || n > most {
		e.fail(key, v, fmt.Sprintf("an integer from %d to %d", least, most))
		return def
	}
	return n
}

func (e *environment) duration(key string, def time.Duration) time.Duration {
	v := e.str(key, "")
	if v == "" {
		return def
	}
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		e.fail(key, v, "a positive duration such as 90s")
		return def
	}
	return d
}

func (e *environment) bytes(key string, def int64) int64 {
	v := e.str(key, "")
	if v == "" {
		return def
	}
	n, err := ParseBytes(v)
	if err != nil {
		e.fail(key, v, "a number of bytes such as 1073741824, 64M or 1G")
		return def
	}
	return n
}

// threshold is a number of bytes from 1 up, -1 for "never", or 0.
func (e *environment) threshold(key string) int64 {
	v := e.str(key, "")
	switch v {
	case "":
		return 0
	case "never", "-1":
		return -1
	}
	n, err := ParseBytes(v)
	if err != nil || n == 0 {
		e.fail(key, v, `a number of bytes from 1 up such as 65536 or 64K, or "never"`)
	}
	return n
}

func (e *environment) logger() *slog.Logger {
	v := e.str("IBCONDUIT_LOG", "")
	if v == "" {
		return slog.New(slog.DiscardHandler)
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(v)); err != nil {
		e.fail("IBCONDUIT_LOG", v, "debug, info, warn or error")
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

var byteShifts = map[string]int{"": 0, "k": 10, "m": 20, "g": 30, "t": 40}

// ParseBytes reads a size: a decimal number of bytes, or one with a suffix K,
// M, G or T (powers of 1024; "KiB" and "k" are understood too).
func ParseBytes(s string) (int64, error) {
	t := strings.TrimSpace(s)
	unit := strings.TrimLeft(t, "0123456789")
	scale := strings.TrimSuffix(strings.ToLower(unit), "b")
	shift, known := byteShifts[strings.TrimSuffix(scale, "i")]
	n, err := strconv.ParseInt(strings.TrimSuffix(t, unit), 10, 64)
	if err != nil || !known || scale == "i" || n > (1<<63-1)>>shift {
		return 0, fmt.Errorf("conduit: %q is not a number of bytes (examples: 8, 64K, 1M, 2G)", s)
	}
	return n << shift, nil
}
