package memevents

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
)

// Environment variables. They are read once; Configure comes before them.
const (
	// EnvEvents: yes (default) or no: watch nothing, every Claim is refused.
	EnvEvents = "IBCONDUIT_MEM_EVENTS"
	// EnvMonitors: auto (default: symbols, reloc where symbols do not lead here, userfaultfd) or a list of
	// symbols, reloc, userfaultfd, patch, auto; none for none. The C part reads patch before Go starts, so it
	// has no effect through Configure.
	EnvMonitors = "IBCONDUIT_MEM_MONITORS"
	// EnvLogLevel: off, error, warn (default), info, or debug, which tells each event on standard error.
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

// Configure chooses the monitors in the environment's place. It fails with ErrBusy once they were started,
// by NewWatcher, Status or Subscribe.
func Configure(c Config) error {
	if err := c.validate(); err != nil {
		return err
	}
	config.mu.Lock()
	defer config.mu.Unlock()
	if config.used {
		return &Error{Op: "configure", Err: ErrBusy, Detail: "the monitors run already", Remedy: "configure before the first watcher"}
	}
	config.c, config.set = c, true
	return nil
}

func (c Config) validate() error {
	for _, name := range c.Monitors {
		if !slices.Contains([]string{"auto", "none", MonitorSymbols, MonitorReloc, MonitorPatch, MonitorUserfaultfd}, name) {
			return &Error{
				Op: "configure", Detail: fmt.Sprintf("there is no monitor %q", name),
				Remedy: "use auto, none, or some of symbols, reloc, userfaultfd, patch",
			}
		}
	}
	return nil
}

// switchedOff reads EnvEvents. What it cannot mean is an error: who writes it wants something else than the default.
func switchedOff(v string) (bool, error) {
	switch strings.ToLower(v) {
	case "", "yes", "on", "true", "1":
		return false, nil
	case "no", "off", "false", "0":
		return true, nil
	}
	return false, &Error{Op: "configure", Detail: fmt.Sprintf("%s=%q", EnvEvents, v), Remedy: "use yes or no"}
}

// takeConfig returns the choice, which is final from then on, and what is wrong with it.
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
	}
	return config.c, config.c.validate()
}

// wants reports whether a monitor was chosen.
func (c Config) wants(name string) bool {
	if c.Monitors == nil {
		return name != MonitorPatch
	}
	return slices.Contains(c.Monitors, name) || name != MonitorPatch && slices.Contains(c.Monitors, "auto")
}
