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
	"github.com/ibconduit/conduit/internal/mux"
)

// ErrGone is a guest that no longer answers: its machine ended, or the connection broke.
var ErrGone = errors.New("the VM is gone")

// Client multiplexes calls over one connection. It is safe for concurrent use.
type Client struct {
	conn net.Conn
	ch   *mux.Channel

	mu    sync.Mutex
	calls map[uint32]*Call
	last  uint32
	err   error // set once the connection has ended
}

// Dial waits for the agent's greeting.
func Dial(ctx context.Context, conn net.Conn) (*Client, *wire.Greeting, error) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	f, err := mux.ReadFrame(conn)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, nil, fmt.Errorf("no greeting from the guest's agent: %w", err)
	}
	var hello wire.Greeting
	if f.Kind != wire.KindHello || json.Unmarshal(f.Body, &hello) != nil || hello.Version != wire.Version {
		return nil, nil, fmt.Errorf("the guest's agent speaks another protocol: %.80q", f.Body)
	}
	c := &Client{conn: conn, ch: mux.New(conn, 0), calls: map[uint32]*Call{}}
	c.ch.Handle = c.take
	c.ch.Begin(conn)
	go func() {
		<-c.ch.Done()
		c.fail(fmt.Errorf("%w: %w", ErrGone, c.ch.Cause()))
	}()
	return c, &hello, nil
}

func (c *Client) take(f mux.Frame) {
	c.mu.Lock()
	call := c.calls[f.ID]
	delete(c.calls, f.ID)
	c.mu.Unlock()
	var res wire.Result
	err := json.Unmarshal(f.Body, &res)
	if call == nil || f.Kind != wire.KindExit || err != nil {
		err = fmt.Errorf("frame %d of exchange %d: %w", f.Kind, f.ID, err)
		c.ch.Fail(err)
	}
	if call != nil {
		call.finish(res, err)
	}
}

// fail ends every call under way, and those to come.
func (c *Client) fail(err error) {
	c.conn.Close()
	c.mu.Lock()
	c.err = err
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
	streams        wire.Streams
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
	call := &Call{c: c, id: c.last, done: make(chan struct{}), streams: wire.NewStreams(c.ch, c.last)}
	c.calls[call.id] = call
	c.mu.Unlock()
	if err := wire.SendJSON(c.ch, wire.KindOpen, call.id, req); err != nil {
		return nil, err
	}
	call.copies.Go(func() { call.outErr = copyOut(stdout, call.streams.Out) })
	call.copies.Go(func() { call.errErr = copyOut(stderr, call.streams.Err) })
	if stdin != nil {
		go func() {
			// The error is either the reader's, which ends the input, or the call's, which Wait
			// returns.
			_, _ = io.Copy(call.streams.In, stdin)
			_ = call.streams.In.CloseWrite()
		}()
	}
	return call, nil
}

// copyOut takes what comes for nothing once the writer fails: the guest must not wait for it.
func copyOut(to io.Writer, from *mux.Stream) error {
	_, err := io.Copy(orDiscard(to), from)
	if err != nil {
		from.Drop()
	}
	return err
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
		call.streams.Close() // the guest ended its own already, or never will
		close(call.done)
	})
}

// Done is closed when the exchange has ended; output may still be on its way to the writers.
func (call *Call) Done() <-chan struct{} { return call.done }

// Signal sends a signal to the command's process group.
func (call *Call) Signal(sig int) { call.c.ch.Send(wire.KindSignal, call.id, []byte{byte(sig)}) }

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
