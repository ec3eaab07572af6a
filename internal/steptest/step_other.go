//go:build !linux || !amd64

package steptest

import "time"

// Operations returns ErrUnsupported.
func Operations(int, string, int, int, time.Duration) (Count, error) { return Count{}, ErrUnsupported }
