//go:build !linux || !cgo

package doctor

import "github.com/ibconduit/conduit/verbs"

// askDevices returns the error in which package verbs says how to build it.
func askDevices() ([]device, error) {
	_, err := verbs.Devices()
	return nil, err
}

func tryPin(name string, _ uint64) (bool, error) {
	_, err := verbs.Open(name)
	return false, err
}
