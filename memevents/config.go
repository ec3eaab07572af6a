package memevents

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// Environment variables. They are read once; Configure comes before them.
const (
	// EnvEvents: yes (default) or no: watch nothing, every Claim is refused.
	EnvEvents = "IBCONDUIT_MEM_EVENTS"
	// EnvMonitors: auto (default: symbols, reloc where symbols do not lead here, userfaultfd) or a
	// list of symbols, reloc, userfaultfd, patch, auto; none for none. The C part reads patch
	// before Go starts, so it has no effect through Configure.
	EnvMonitors = "IBCONDUIT_MEM_MONITORS"
	// EnvLogLevel: off, error, warn (default), info, or debug, which writes each event to standard
	// error.
	EnvLogLevel = "IBCONDUIT_MEM_LOG_LEVEL"
)

// The monitors by name, as in EnvMonitors and Report.
const (
	MonitorSymbols     = "symbols"
	MonitorPreload     = "preload" // symbols of libmemevents.so
	MonitorReloc       = "reloc"
	MonitorPatch       = "patch"
	MonitorUserfaultfd = "userfaultfd"
)

// Config says which monitors to use. The zero value is the environment's choice.
type Config struct {
	// Off: watch nothing.
	Off bool
	// Monitors are names as in EnvMonitors; default: that variable, or auto.
	Monitors []string
}

var config struct {
	mu   sync.Mutex
	set  bool
	used bool
	c    Config
}

// Configure chooses the monitors in the environment's place. It fails with ErrBusy once they were
// started, by NewWatcher or Status.
func Configure(c Config) error {
	if err := checkMonitors(c.Monitors, ""); err != nil {
		return err
	}
	config.mu.Lock()
	defer config.mu.Unlock()
	if config.used {
		return &Error{Op: "configure", Err: ErrBusy, Detail: "the monitors run already",
			Remedy: "configure before the first watcher"}
	}
	config.c, config.set = c, true
	return nil
}

// checkMonitors refuses unknown names, and none beside others.
func checkMonitors(names []string, where string) error {
	known := []string{"auto", "none", MonitorSymbols, MonitorReloc, MonitorPatch, MonitorUserfaultfd}
	detail := ""
	for _, name := range names {
		if detail == "" && !slices.Contains(known, name) {
			detail = fmt.Sprintf("there is no monitor %q", name)
		}
	}
	if detail == "" && len(names) > 1 && slices.Contains(names, "none") {
		detail = "none stands beside other monitors"
	}
	if detail == "" {
		return nil
	}
	return &Error{Op: "configure", Detail: detail + where, Remedy: "use " + wantMonitors}
}

// switchedOff reads EnvEvents. A value without meaning is an error: its writer wants something else
// than the default.
func switchedOff(v string) (bool, error) {
	switch strings.ToLower(v) {
	case "", "yes", "on", "true", "1":
		return false, nil
	case "no", "off", "false", "0":
		return true, nil
	}
	return false, &Error{Op: "configure", Detail: fmt.Sprintf("%s=%q", EnvEvents, v), Remedy: "use yes or no"}
}

// Variable is one of the environment. Nothing of an unknown value is guessed: with one in EnvEvents
// or EnvMonitors nothing is watched, with one in EnvLogLevel its default holds; caches and jobs
// refuse to start with any.
type Variable struct {
	Name  string
	Want  string                  // its values, for a message
	Valid func(value string) bool // empty is as good as not set
}

const wantMonitors = "auto, none, or a list of symbols, reloc, userfaultfd, patch with commas and without spaces"

// Variables are this package's.
func Variables() []Variable {
	return []Variable{
		{EnvEvents, "yes or no", func(v string) bool { _, err := switchedOff(v); return err == nil }},
		{EnvMonitors, wantMonitors, func(v string) bool {
			return v == "" || checkMonitors(strings.Split(v, ","), "") == nil
		}},
		{EnvLogLevel, "off, error, warn, info or debug", func(v string) bool {
			// ibc_mem_start.c, log_level
			return v == "" || slices.Contains([]string{"off", "error", "warn", "info", "debug"}, v)
		}},
	}
}

// CheckEnvironment refuses values that mean nothing, of the variables that count: Configure comes
// before two of them.
func CheckEnvironment() error {
	config.mu.Lock()
	events, monitors := config.set, config.set && config.c.Monitors != nil
	config.mu.Unlock()
	for _, v := range Variables() {
		value := os.Getenv(v.Name)
		if v.Valid(value) || v.Name == EnvEvents && events || v.Name == EnvMonitors && monitors {
			continue
		}
		return &Error{Op: "configure", Errno: syscall.EINVAL, Detail: fmt.Sprintf("%s=%q", v.Name, value),
			Remedy: "use " + v.Want}
	}
	return nil
}

// takeConfig returns the choice, which is final from then on, and its fault.
func takeConfig() (Config, error) {
	config.mu.Lock()
	defer config.mu.Unlock()
	config.used = true
	if !config.set {
		off, err := switchedOff(os.Getenv(EnvEvents))
		if err != nil {
			return Config{Off: true}, err
		}
		config.c.Off = off
	}
	if config.c.Monitors == nil {
		if list := os.Getenv(EnvMonitors); list != "" {
			config.c.Monitors = strings.Split(list, ",")
		}
		if err := checkMonitors(config.c.Monitors, " ("+EnvMonitors+")"); err != nil {
			return config.c, err
		}
	}
	return config.c, nil
}

// wants reports whether a monitor was chosen.
func (c Config) wants(name string) bool {
	if c.Monitors == nil {
		return name != MonitorPatch
	}
	return slices.Contains(c.Monitors, name) || name != MonitorPatch && slices.Contains(c.Monitors, "auto")
}
