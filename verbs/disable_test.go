package verbs

import (
	"errors"
	"strings"
	"syscall"
	"testing"
)

func TestDisabledFeaturesVanishFromTheLimits(t *testing.T) {
	full := DeviceAttr{AtomicCap: AtomicGlob, MaxMW: 5, Flags: FlagMemWindowType2B | 1, ODP: ODPCaps{General: ODPSupported}, MaxSRQ: 3, MaxSRQWR: 4, MaxQP: 9}
	a := full
	if err := a.disable(""); err != nil || a != full {
		t.Errorf("nothing disabled: %+v, %v", a, err)
	}
	check(t, a.disable("atomics, inline,mw,odp,srq"))
	if want := (DeviceAttr{Flags: 1, MaxQP: 9, NoInline: true}); a != want {
		t.Errorf("%+v, want %+v", a, want)
	}
	if err := a.disable("atomics,warp"); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), `"warp"`) {
		t.Errorf("unknown feature: %v", err)
	}
}
