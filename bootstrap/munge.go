package bootstrap

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// munger proves by munge, Slurm's own way, that both sides of a connection are processes of one
// user. A credential is no shared secret: it is bound to its connection, of which both sides know a
// number that none can choose (RFC 5705), and to a role, so that it proves nothing anywhere else.
type munger struct {
	job            string
	munge, unmunge string // the programs
	uid            int
}

// errNotProven: the other side is not proven to be a rank of this job.
var errNotProven = errors.New("peer is not proven to belong to this job")

// mungeTTL is how long a credential can be used, in seconds.
const mungeTTL = "60"

// findMunge looks for munge and tries it.
func findMunge(ctx context.Context, job string) (*munger, error) {
	m := &munger{job: job, uid: os.Geteuid()}
	var err1, err2 error
	m.munge, err1 = exec.LookPath("munge")
	m.unmunge, err2 = exec.LookPath("unmunge")
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	if _, err := run(ctx, "", m.munge, "--no-input"); err != nil {
		return nil, err
	}
	return m, nil
}

// run returns what a program writes to its standard output.
func run(ctx context.Context, input, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errs
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", program, err, bytes.TrimSpace(errs.Bytes()))
	}
	return out.String(), nil
}

// The two sides of a connection.
const (
	roleRank = "rank"
	roleRoot = "root"
)

// claim is what a side's credential says.
func (m *munger) claim(conn *tls.Conn, role string, rank int) (string, error) {
	state := conn.ConnectionState()
	number, err := state.ExportKeyingMaterial("EXPORTER-ibconduit-munge", nil, 32)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("ibconduit %s %s %s %d", role, hex.EncodeToString(number), m.job, rank), nil
}

// send proves to the other side what this one is.
func (m *munger) send(ctx context.Context, conn *tls.Conn, role string, rank int) error {
	claim, err := m.claim(conn, role, rank)
	if err != nil {
		return err
	}
	credential, err := run(ctx, claim, m.munge, "--restrict-uid="+strconv.Itoa(m.uid), "--ttl="+mungeTTL)
	if err != nil {
		return err
	}
	_, err = conn.Write(finish(append(newFrame(frameCredential, len(credential)), credential...)))
	return err
}

// receive takes the other side's proof and returns its rank. What proves something else, or
// nothing, is errNotProven.
func (m *munger) receive(ctx context.Context, conn *tls.Conn, role string) (rank int, err error) {
	kind, body, err := readFrame(conn, maxHello)
	if err != nil {
		return 0, fmt.Errorf("no munge credential: %w", err)
	}
	if kind != frameCredential {
		return 0, fmt.Errorf("frame %d instead of a munge credential", kind)
	}
	out, err := run(ctx, string(body), m.unmunge)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errNotProven, err)
	}
	uid, said, err := parseUnmunge(out)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errNotProven, err)
	}
	if uid != m.uid {
		return 0, fmt.Errorf("%w: its munge credential is of user %d, this is user %d", errNotProven, uid, m.uid)
	}
	text, number, _ := cutLast(said, " ")
	if rank, err = strconv.Atoi(number); err != nil {
		return 0, fmt.Errorf("%w: %q names no rank", errNotProven, said)
	}
	want, err := m.claim(conn, role, rank)
	if err == nil && want != said {
		err = fmt.Errorf("%w: its munge credential is for %q, want this connection of job %s", errNotProven, text, m.job)
	}
	return rank, err
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

var mungeUID = regexp.MustCompile(`(?m)^UID:\s+(?:.*\()?(\d+)\)?$`)

// parseUnmunge reads what unmunge(1) writes: lines about the credential, an empty one, the payload.
func parseUnmunge(out string) (uid int, payload string, err error) {
	about, payload, found := strings.Cut(out, "\n\n")
	m := mungeUID.FindStringSubmatch(about)
	if !found || m == nil {
		return 0, "", fmt.Errorf("unmunge says %q", shorten(out))
	}
	uid, err = strconv.Atoi(m[1])
	return uid, payload, err
}

// ephemeral makes a configuration in which the certificate proves nothing.
func ephemeral() (*tls.Config, error) {
	conf, err := tlsFor([]byte(rand.Text()))
	if err == nil {
		conf.VerifyConnection = nil
	}
	return conf, err
}
