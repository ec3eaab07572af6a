package verbs

import (
	"errors"
	"strings"
	"syscall"
	"testing"
)

func TestDisabledFeaturesVanishFromTheLimits(t *testing.T) {
	full := DeviceAttr{AtomicCap: AtomicGlob, MaxSRQ: 3, MaxSRQWR: 4, MaxQP: 9}
	a := full
	if err := a.disable(""); err != nil || a != full {
		t.Errorf("nothing disabled: %+v, %v", a, err)
	}
	check(t, a.disable("atomics, inline,srq"))
	if want := (DeviceAttr{MaxQP: 9, NoInline: true}); a != want {
		t.Errorf("%+v, want %+v", a, want)
	}
	if err := a.disable("atomics,warp"); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), `"warp"`) {
		t.Errorf("unknown feature: %v", err)
	}
}
