package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/ibconduit/conduit/hack/softroce/internal/wire"
)

// ErrGone is a guest that no longer answers: its machine ended, or the connection broke.
var ErrGone = errors.New("the VM is gone")

// Client multiplexes calls over one connection. It is safe for concurrent use.
type Client struct {
	conn net.Conn
	out  *wire.Writer

	mu    sync.Mutex
	calls map[uint32]*Call
	last  uint32
	err   error // set once the connection has ended
}

// Dial waits for the agent's greeting.
func Dial(ctx context.Context, conn net.Conn) (*Client, *wire.Greeting, error) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	in := wire.NewReader(conn)
	f, err := in.Read()
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, nil, fmt.Errorf("no greeting from the guest's agent: %w", err)
	}
	var hello wire.Greeting
	if f.Kind != wire.KindHello || json.Unmarshal(f.Payload, &hello) != nil || hello.Version != wire.Version {
		return nil, nil, fmt.Errorf("the guest's agent speaks another protocol: %.80q", f.Payload)
	}
	c := &Client{conn: conn, out: wire.NewWriter(conn), calls: map[uint32]*Call{}}
	go c.read(in)
	return c, &hello, nil
}

func (c *Client) read(in *wire.Reader) {
	for {
		f, err := in.Read()
		if err == nil {
			err = c.dispatch(f)
		}
		if err != nil {
			c.fail(fmt.Errorf("%w: %w", ErrGone, err))
			return
		}
	}
}

func (c *Client) dispatch(f wire.Frame) error {
	c.mu.Lock()
	call := c.calls[f.ID]
	c.mu.Unlock()
	if call == nil {
		return nil // a credit that crossed with the exchange's end
	}
	switch f.Kind {
	case wire.KindData:
		switch stream, data := f.Stream(); stream {
		case wire.Stdout:
			return call.stdout.Push(data)
		case wire.Stderr:
			return call.stderr.Push(data)
		}
	case wire.KindCredit:
		_, n := f.Credit()
		call.stdin.Grant(n)
	case wire.KindExit:
		var res wire.Result
		if err := json.Unmarshal(f.Payload, &res); err != nil {
			return err
		}
		c.mu.Lock()
		delete(c.calls, f.ID)
		c.mu.Unlock()
		call.finish(res, nil)
	}
	return nil
}

// fail ends every call under way, and those to come.
func (c *Client) fail(err error) {
	c.conn.Close()
	c.mu.Lock()
	if c.err == nil {
		c.err = err
	}
	calls := c.calls
	c.calls = map[uint32]*Call{}
	c.mu.Unlock()
	for _, call := range calls {
		call.finish(wire.Result{}, err)
	}
}

// Call is one exchange.
type Call struct {
	c              *Client
	id             uint32
	stdin          *wire.Sender
	stdout, stderr *wire.Receiver
	copies         sync.WaitGroup
	outErr, errErr error

	once sync.Once
	done chan struct{}
	res  wire.Result
	err  error
}

// Start opens an exchange. Output goes to the writers as it arrives; nil discards. stdin, when
// given, is read until its end or the call's; a Read under way then is not interrupted.
func (c *Client) Start(req wire.Request, stdin io.Reader, stdout, stderr io.Writer) (*Call, error) {
	req.NoStdin = stdin == nil
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return nil, c.err
	}
	c.last++
	call := &Call{c: c, id: c.last, done: make(chan struct{}),
		stdin:  wire.NewSender(c.out, c.last, wire.Stdin),
		stdout: wire.NewReceiver(c.out, c.last, wire.Stdout), stderr: wire.NewReceiver(c.out, c.last, wire.Stderr)}
	c.calls[call.id] = call
	c.mu.Unlock()
	if err := c.out.WriteJSON(wire.KindOpen, call.id, req); err != nil {
		c.mu.Lock()
		delete(c.calls, call.id)
		c.mu.Unlock()
		return nil, fmt.Errorf("%w: %w", ErrGone, err)
	}
	call.copies.Go(func() { call.outErr = call.stdout.CopyTo(orDiscard(stdout)) })
	call.copies.Go(func() { call.errErr = call.stderr.CopyTo(orDiscard(stderr)) })
	if stdin != nil {
		go func() {
			// The error is either the reader's, which ends the input, or the call's, which Wait
			// returns.
			_, _ = io.Copy(call.stdin, stdin)
			_ = call.stdin.Finish()
		}()
	}
	return call, nil
}

func orDiscard(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}

func (call *Call) finish(res wire.Result, err error) {
	call.once.Do(func() {
		call.res, call.err = res, err
		call.stdin.Abort(io.ErrClosedPipe)
		// The guest ended both streams already, or never will.
		_ = call.stdout.Push(nil)
		_ = call.stderr.Push(nil)
		close(call.done)
	})
}

// Done is closed when the exchange has ended; output may still be on its way to the writers.
func (call *Call) Done() <-chan struct{} { return call.done }

// Signal sends a signal to the command's process group.
func (call *Call) Signal(sig int) error { return call.c.out.WriteSignal(call.id, sig) }

// Wait waits for the end and for all output to be written.
func (call *Call) Wait() (wire.Result, error) {
	<-call.done
	call.copies.Wait()
	if call.err != nil {
		return call.res, call.err
	}
	return call.res, errors.Join(call.outErr, call.errErr)
}

// Do runs an exchange that has no streams but perhaps output, and turns a refusal into an error.
func (c *Client) Do(ctx context.Context, req wire.Request, stdout io.Writer) error {
	call, err := c.Start(req, nil, stdout, nil)
	if err != nil {
		return err
	}
	select {
	case <-call.Done():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	res, err := call.Wait()
	if err == nil && res.Err != "" {
		err = errors.New(res.Err)
	}
	return err
}
