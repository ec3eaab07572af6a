//go:build !linux

package bootstrap

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

func userTimeout(*net.TCPConn, int) {}

func adoptFD(variable, spec string) (*os.File, error) {
	return nil, fmt.Errorf("%s=%s: descriptors are inherited on linux only: %w", variable, spec, errors.ErrUnsupported)
}

// inherited is not reached: nothing was adopted.
func inherited(f *os.File, _ time.Duration) io.Reader { return f }

func closeOnExec(string) {}

type life struct{}

func holdLife(environment) life { return life{} }

func (life) ending() {}
