//go:build !linux || !cgo

package machine

import (
	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/verbs"
)

// FindDevice fails: this build has no verbs.
func FindDevice(name, gid string) (*report.Device, string, error) {
	_, err := verbs.Open(name)
	return nil, "", err
}

// DescribePort fails: this build has no verbs.
func DescribePort(name string, _ int, _ string) (*report.Device, error) {
	_, err := verbs.Open(name)
	return nil, err
}
