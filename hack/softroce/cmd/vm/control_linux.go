package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ibconduit/conduit/hack/softroce"
	"github.com/ibconduit/conduit/hack/softroce/internal/image"
)

// A control connection carries one JSON request and a sequence of JSON replies, each on a line; the
// last has End set.
type (
	ctlRequest struct {
		Args []string
		Dir  string
	}
	ctlReply struct {
		Out  []byte `json:",omitempty"`
		Err  []byte `json:",omitempty"`
		End  bool   `json:",omitempty"`
		Code int    `json:",omitempty"`
	}
)

const socketName = "ctl"

// inDir calls f with a short name for dir: the address of a Unix socket holds 107 bytes, a folder's
// path may be longer.
func inDir[T any](dir string, f func(short string) (T, error)) (T, error) {
	d, err := os.Open(dir)
	if err != nil {
		var zero T
		return zero, err
	}
	defer d.Close()
	return f(fmt.Sprintf("/proc/self/fd/%d", d.Fd()))
}

// serveControl answers vm ctl until the listener is closed.
func serveControl(c *softroce.Cluster, o *options, dir string) (net.Listener, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if conn, err := dialControl(dir); err == nil {
		conn.Close()
		return nil, fmt.Errorf("another cluster is controlled through %s; give -dir", dir)
	}
	_ = os.Remove(filepath.Join(dir, socketName)) // of a cluster that was killed
	l, err := inDir(dir, func(d string) (*net.UnixListener, error) {
		return net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(d, socketName), Net: "unix"})
	})
	if err != nil {
		return nil, fmt.Errorf("control socket in %s: %w", dir, err)
	}
	l.SetUnlinkOnClose(false) // its name is that of a descriptor closed since
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go answer(c, o, conn)
		}
	}()
	return l, nil
}

func answer(c *softroce.Cluster, o *options, conn net.Conn) {
	defer conn.Close()
	var req ctlRequest
	if err := json.NewDecoder(bufio.NewReader(conn)).Decode(&req); err != nil || len(req.Args) == 0 {
		return
	}
	out := &ctlWriter{enc: json.NewEncoder(conn)}
	code, err := act(c, o, req, out)
	if err != nil {
		code = max(code, exitUsage)
		out.send(ctlReply{Err: []byte("vm: " + err.Error() + "\n")})
	}
	out.send(ctlReply{End: true, Code: code})
}

type ctlWriter struct {
	mu  sync.Mutex
	enc *json.Encoder
}

func (w *ctlWriter) send(r ctlReply) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.enc.Encode(r)
}

type ctlStream struct {
	w   *ctlWriter
	err bool
}

func (s ctlStream) Write(p []byte) (int, error) {
	r := ctlReply{Out: p}
	if s.err {
		r = ctlReply{Err: p}
	}
	return len(p), s.w.send(r)
}

// ctlArgs is how many arguments a verb takes; -1: any.
var ctlArgs = map[string]int{"list": 0, "cut": 2, "restore": 2, "drop": 3, "delay": 3, "kill": 1, "exec": -1}

func act(c *softroce.Cluster, o *options, req ctlRequest, out *ctlWriter) (int, error) {
	verb, args := req.Args[0], req.Args[1:]
	want, known := ctlArgs[verb]
	if !known || want >= 0 && len(args) != want || verb == "exec" && len(args) < 2 {
		return 0, fmt.Errorf("ctl: %s: the verbs are: list, cut A B, restore A B, drop A B PERCENT, delay A B DURATION, kill I, exec I CMD ARGS...", strings.Join(req.Args, " "))
	}
	var host [2]int
	for i := range min(2, len(args)) {
		if i == 1 && (verb == "exec" || verb == "kill") {
			break
		}
		n, err := strconv.Atoi(strings.TrimPrefix(args[i], "vm"))
		if err != nil || n < 0 || n >= c.Hosts() {
			return 0, fmt.Errorf("ctl: no VM %q among %d", args[i], c.Hosts())
		}
		host[i] = n
	}
	switch verb {
	case "list":
		return 0, out.send(ctlReply{Out: []byte(describe(c))})
	case "cut":
		return 0, c.Cut(host[0], host[1])
	case "restore":
		return 0, c.Restore(host[0], host[1])
	case "drop":
		p, err := strconv.ParseFloat(strings.TrimSuffix(args[2], "%"), 64)
		if err != nil || !(p >= 0 && p <= 100) {
			return 0, fmt.Errorf("ctl: loss %q: want a number of percent from 0 to 100", args[2])
		}
		return 0, c.Drop(host[0], host[1], p/100)
	case "delay":
		d, err := time.ParseDuration(args[2])
		if err != nil || d < 0 {
			return 0, fmt.Errorf("ctl: delay %q: want a time such as 20ms", args[2])
		}
		return 0, c.Delay(host[0], host[1], d)
	case "kill":
		return 0, c.Kill(host[0])
	}
	return execIn(c, o, host[0], req, out)
}

func execIn(c *softroce.Cluster, o *options, i int, req ctlRequest, out *ctlWriter) (int, error) {
	cmd := o.command(c.Host(i), req.Args[2:])
	cmd.Dir = req.Dir
	cmd.Stdout, cmd.Stderr = ctlStream{out, false}, ctlStream{out, true}
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	err := cmd.Run(ctx)
	var exit *softroce.ExitError
	if errors.As(err, &exit) && exit.Reason == "" {
		return exit.Code, nil
	}
	if err != nil {
		return exitInfrastructure, err
	}
	return 0, nil
}

func describe(c *softroce.Cluster) string {
	var b strings.Builder
	for i := range c.Hosts() {
		state := "up"
		if !c.Host(i).Alive() {
			state = "ended"
		}
		fmt.Fprintf(&b, "vm%d  %s  %s  pid %d\n", i, state, softroce.Address(i), c.Host(i).PID())
	}
	for i := range c.Hosts() {
		for j := range c.Hosts() {
			if i == j {
				continue
			}
			l := c.Link(i, j)
			fmt.Fprintf(&b, "vm%d>vm%d  sent %d  lost %d", i, j, l.Sent, l.Lost)
			if l.Cut {
				b.WriteString("  CUT")
			}
			if l.Loss > 0 {
				fmt.Fprintf(&b, "  LOSS %g%%", l.Loss*100)
			}
			if l.Delay > 0 {
				fmt.Fprintf(&b, "  DELAY %v", l.Delay)
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// runCtl is the other end.
func runCtl(ctx context.Context, o *options, args []string) int {
	if len(args) == 0 {
		return fail(exitUsage, errors.New("ctl: no verb; vm -h lists them"))
	}
	conn, err := findControl(o.dir)
	if err != nil {
		return fail(exitInfrastructure, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	cwd, err := os.Getwd()
	if err != nil {
		return fail(exitInfrastructure, err)
	}
	if err := json.NewEncoder(conn).Encode(ctlRequest{Args: args, Dir: cwd}); err != nil {
		return fail(exitInfrastructure, err)
	}
	for dec := json.NewDecoder(bufio.NewReader(conn)); ; {
		var r ctlReply
		if err := dec.Decode(&r); err != nil {
			return fail(exitInfrastructure, fmt.Errorf("ctl: the cluster ended: %w", err))
		}
		_, outErr := os.Stdout.Write(r.Out)
		_, errErr := os.Stderr.Write(r.Err)
		if err := errors.Join(outErr, errErr); err != nil {
			return fail(exitInfrastructure, err)
		}
		if r.End {
			return r.Code
		}
	}
}

func dialControl(dir string) (net.Conn, error) {
	return inDir(dir, func(d string) (net.Conn, error) { return net.Dial("unix", filepath.Join(d, socketName)) })
}

// findControl connects to the cluster of a folder, or to the one that runs.
func findControl(dir string) (net.Conn, error) {
	if dir != "" {
		conn, err := dialControl(dir)
		if err != nil {
			return nil, fmt.Errorf("ctl: no cluster runs with -dir %s: %w", dir, err)
		}
		return conn, nil
	}
	build, err := image.Dir()
	if err != nil {
		return nil, err
	}
	sockets, _ := filepath.Glob(filepath.Join(build, "log", "*", socketName))
	sort.Sort(sort.Reverse(sort.StringSlice(sockets)))
	for _, s := range sockets {
		if conn, err := dialControl(filepath.Dir(s)); err == nil {
			return conn, nil
		}
	}
	return nil, errors.New("ctl: no cluster runs; if one was started with -dir, give the same")
}
