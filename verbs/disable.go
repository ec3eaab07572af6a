package verbs

import (
	"fmt"
	"strings"
	"syscall"
)

// EnvDisable names the environment variable that switches features of devices off, to find out
// which of them a problem comes from: a comma-separated list of atomics, inline and srq.
// It is read when a device is opened; the device then looks as if it had none of them.
const EnvDisable = "IBCONDUIT_VERBS_DISABLE"

// EnvLibrary names the environment variable with the file that is loaded in the place of
// libibverbs.so.1: a path, or a name for the dynamic linker to look for. It is read once, when the
// library is first needed.
const EnvLibrary = "IBCONDUIT_LIBIBVERBS"

// disable takes features away from the limits of a device.
func (a *DeviceAttr) disable(list string) error {
	for word := range strings.SplitSeq(list, ",") {
		switch strings.TrimSpace(word) {
		case "":
		case "atomics":
			a.AtomicCap = AtomicNone
		case "inline":
			a.NoInline = true
		case "srq":
			a.MaxSRQ, a.MaxSRQWR, a.MaxSRQSGE = 0, 0, 0
		default:
			return &Error{Op: "read " + EnvDisable, Errno: syscall.EINVAL, Detail: fmt.Sprintf("unknown feature %q", word),
				Remedy: "features are atomics, inline, srq"}
		}
	}
	return nil
}

// lacks is the error of a feature that a device does not have, or that is switched off.
func lacks(op, device, feature string) error {
	return &Error{Op: op, Device: device, Errno: syscall.EOPNOTSUPP, Err: ErrNotSupported,
		Detail: "the device has no " + feature, Remedy: "is it switched off by " + EnvDisable + "?"}
}
