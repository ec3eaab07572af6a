package bootstrap

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// maxPMILine bounds a line of the server. Values are at most 1024 bytes with
// the servers known; the rest is room.
const maxPMILine = 8 << 10

// pmiConn speaks PMI-1: one request at a time, one line each way.
type pmiConn struct {
	mu     sync.Mutex
	conn   net.Conn
	in     *bufio.Reader
	broken error // after a time-out the answers would be one behind
	closed atomic.Bool
}

func newPMIConn(c net.Conn) *pmiConn {
	return &pmiConn{conn: c, in: bufio.NewReaderSize(c, maxPMILine)}
}

// pmiLine is a parsed line. Servers differ in the order of the keys.
type pmiLine map[string]string

// parsePMI splits "cmd=get_result rc=0 msg=success value=V".
func parsePMI(line string) (pmiLine, error) {
	m := pmiLine{}
	for _, field := range strings.Fields(line) {
		key, value, ok := strings.Cut(field, "=")
		if !ok || key == "" {
			if _, inMessage := m["msg"]; inMessage {
				continue // the text of an error may have blanks
			}
			return nil, fmt.Errorf("PMI line %q: %q is not key=value", shorten(line), shorten(field))
		}
		if _, twice := m[key]; !twice {
			m[key] = value
		}
	}
	if m["cmd"] == "" {
		return nil, fmt.Errorf("PMI line %q has no cmd", shorten(line))
	}
	return m, nil
}

func shorten(s string) string {
	const most = 120
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}

// call sends a request and reads its answer. Every error is final: what comes
// next on the connection would be the answer to something else.
func (p *pmiConn) call(ctx context.Context, request, answer string) (pmiLine, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken != nil {
		return nil, p.broken
	}
	line, err := p.exchangeLocked(ctx, request, answer)
	if err != nil {
		p.broken = err
	}
	return line, err
}

func (p *pmiConn) exchangeLocked(ctx context.Context, request, answer string) (pmiLine, error) {
	defer p.endWith(ctx)()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if request != "" {
		if _, err := io.WriteString(p.conn, request+"\n"); err != nil {
			return nil, p.wireError(ctx, request, err)
		}
	}
	line, err := p.readLineLocked()
	if err != nil {
		return nil, p.wireError(ctx, request, err)
	}
	m, err := parsePMI(line)
	if err != nil {
		return nil, err
	}
	if m["cmd"] != answer {
		return nil, fmt.Errorf("PMI server answered %q to %q, not cmd=%s", shorten(line), shorten(request), answer)
	}
	if rc := m["rc"]; rc != "" && rc != "0" {
		return nil, fmt.Errorf("PMI server refused %q: %s", shorten(request), shorten(line))
	}
	return m, nil
}

// endWith interrupts the connection's use when ctx ends. The returned function
// undoes that, after a late interruption too.
func (p *pmiConn) endWith(ctx context.Context) (undo func()) {
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = p.conn.SetDeadline(time.Unix(1, 0))
		close(interrupted)
	})
	return func() {
		if !stop() {
			<-interrupted
			_ = p.conn.SetDeadline(time.Time{})
		}
	}
}

func (p *pmiConn) wireError(ctx context.Context, request string, err error) error {
	if p.closed.Load() {
		return os.ErrClosed
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("the launcher closed the connection: %w", err)
	}
	return fmt.Errorf("PMI %q: %w", shorten(request), err)
}

func (p *pmiConn) readLineLocked() (string, error) {
	line, err := p.in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return "", fmt.Errorf("a line of more than %d bytes", maxPMILine)
	}
	if err != nil {
		return "", err
	}
	return strings.TrimRight(string(line), "\r\n"), nil
}

// finish ends a call in progress with os.ErrClosed, finalizes where the
// connection is still in order, and closes the connection.
func (p *pmiConn) finish(within time.Duration) error {
	p.closed.Store(true)
	_ = p.conn.SetDeadline(time.Unix(1, 0))
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.conn.Close()
	if p.broken != nil {
		return nil
	}
	p.broken = os.ErrClosed
	p.closed.Store(false)
	_ = p.conn.SetDeadline(time.Time{})
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	_, err := p.exchangeLocked(ctx, "cmd=finalize", "finalize_ack")
	return err
}

// say sends a line that has no answer.
func (p *pmiConn) say(line string, within time.Duration) {
	_ = p.conn.SetDeadline(time.Now().Add(within))
	_, _ = io.WriteString(p.conn, line+"\n")
}
