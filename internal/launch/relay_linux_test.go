package launch

import (
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
)

// tries is a listener whose attempts to take a connection have these results, until it is closed.
type tries struct {
	net.Listener
	results []error
}

func (l *tries) Accept() (net.Conn, error) {
	if len(l.results) == 0 {
		return nil, &net.OpError{Op: "accept", Net: "unix", Err: net.ErrClosed}
	}
	err := l.results[0]
	if l.results = l.results[1:]; err != nil {
		return nil, &net.OpError{Op: "accept", Net: "unix", Err: os.NewSyscallError("accept4", err)}
	}
	return nil, nil
}

// A rank whose connection cannot be taken waits, and is not given up.
func TestAConnectionThatCannotBeTakenIsSaid(t *testing.T) {
	taken, said := 0, []string{}
	acceptAll(&tries{results: []error{nil, syscall.EMFILE, syscall.EMFILE, nil, syscall.ECONNABORTED, nil}},
		func(text string) { said = append(said, text) }, func(net.Conn) { taken++ })
	if taken != 3 || len(said) != 1 || !strings.Contains(said[0], "too many open files") || !strings.Contains(said[0], "raise ulimit -n") {
		t.Errorf("%d were taken; said: %q", taken, said)
	}
}
