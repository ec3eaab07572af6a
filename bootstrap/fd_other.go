//go:build !unix

package bootstrap

import (
	"errors"
	"net"
)

func connFromFD(int) (net.Conn, error) { return nil, errors.ErrUnsupported }
