package regcache

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/ibconduit/conduit/memevents"
)

type noRegistrar struct{}

func (noRegistrar) Register(uintptr, uint64, Access) (MR, error) { return nil, syscall.ENOSYS }

func TestNewRefusesMeaninglessVariables(t *testing.T) {
	for _, name := range []string{memevents.EnvEvents, memevents.EnvMonitors, memevents.EnvLogLevel, Env} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, "dunno")
			c, err := New(Config{Registrar: noRegistrar{}})
			if !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), name+`="dunno"`) {
				t.Errorf("%v", err)
			}
			if err == nil {
				c.Close()
			}
		})
	}
}
