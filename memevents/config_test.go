package memevents

import (
	"errors"
	"strings"
	"syscall"
	"testing"
)

func TestMeaninglessVariablesAreRefused(t *testing.T) {
	for _, v := range Variables() { // another may be set to something odd while the tests run
		t.Setenv(v.Name, "")
	}
	for _, c := range []struct {
		name string
		good []string
		bad  map[string]string // to what the text has to say
	}{
		{EnvEvents, []string{"", "yes", "ON", "true", "1", "no", "Off", "false", "0"}, map[string]string{"nein": "yes or no", " no": "yes or no"}},
		{EnvMonitors, []string{"", "auto", "none", "auto,patch", "symbols,reloc,userfaultfd"}, map[string]string{"symbls": "symbols, reloc, userfaultfd, patch", "auto, patch": "without spaces", "auto,": "a list", "none,auto": "none, or a list", "patch,none": "none, or a list"}},
		{EnvLogLevel, []string{"", "off", "error", "warn", "info", "debug"}, map[string]string{"loud": "off, error, warn, info or debug", "3": "debug"}},
	} {
		for _, value := range c.good {
			t.Setenv(c.name, value)
			if err := CheckEnvironment(); err != nil {
				t.Errorf("%s=%q: %v", c.name, value, err)
			}
		}
		for value, want := range c.bad {
			t.Setenv(c.name, value)
			err := CheckEnvironment()
			if !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), c.name+"=\""+value+`"`) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s=%q: %v", c.name, value, err)
			}
		}
		t.Setenv(c.name, "")
	}
}
