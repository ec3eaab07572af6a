package bootstrap

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"syscall"
	"time"
)

// minSecret bytes; `openssl rand -hex 32` gives 64.
const minSecret = 16

// secretTime bounds the wait for a writer that does not close the pipe.
const secretTime = 5 * time.Second

// maxSecret bytes are read at most.
const maxSecret = 64 << 10

// readSecret finds the job's secret, or nil if there is none. The pipe is the
// best place: a file stays, and the environment of a process can be read in
// /proc by its user and is handed to every child.
func readSecret(env environment) ([]byte, error) { return readSecretWithin(env, secretTime) }

func readSecretWithin(env environment, timeout time.Duration) ([]byte, error) {
	var raw []byte
	var from string
	if spec := env.get("IBCONDUIT_SECRET_FD"); spec != "" {
		from = "IBCONDUIT_SECRET_FD"
		f, err := adoptFD(from, spec)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if raw, err = io.ReadAll(io.LimitReader(inherited(f, timeout), maxSecret+1)); err != nil {
			return nil, fmt.Errorf("%s=%s: %w", from, spec, err)
		}
	} else if path := env.get("IBCONDUIT_SECRET_FILE"); path != "" {
		from = "IBCONDUIT_SECRET_FILE"
		var err error
		if raw, err = readSecretFile(path, timeout); err != nil {
			return nil, fmt.Errorf("%s: %w", from, err)
		}
	} else if s := env.get("IBCONDUIT_SECRET"); s != "" {
		from, raw = "IBCONDUIT_SECRET", []byte(s)
	} else {
		return nil, nil
	}
	if len(raw) > maxSecret {
		return nil, fmt.Errorf("the secret from %s has more than %d bytes", from, maxSecret)
	}
	if len(raw) == 0 && from == "IBCONDUIT_SECRET_FD" {
		if env.get("IBCONDUIT_SIZE") == "1" {
			return nil, nil // it meets nobody
		}
		return nil, fmt.Errorf("%s=%s: the secret has been taken: %w", from, env.get(from), errTaken)
	}
	raw = bytes.TrimSpace(raw)
	if len(raw) < minSecret {
		return nil, fmt.Errorf("the secret from %s has %d bytes, at least %d random ones are needed, as from: "+
			"openssl rand -hex 32", from, len(raw), minSecret)
	}
	return raw, nil
}

// whyGone is why a descriptor of the launcher may not be there.
const whyGone = "a second Join of one process, or a program that inherited the variable but not the descriptor, " +
	"as one that a rank has started: a wrapper that starts the rank must hand on its descriptors " +
	"(Python's subprocess: close_fds=False); " +
	"IBCONDUIT_BOOTSTRAP=self makes it a job of its own"

// errTaken is the error of a second program of a rank.
var errTaken = errors.New("another program of this rank has joined the job already, as with sh -c 'a && b'. " +
	"A rank joins once: " +
	"give each program a launcher of its own (ibrun a && ibrun b), or a job of its own (IBCONDUIT_BOOTSTRAP=self)")

// readSecretFile bounds time and length, whatever the path leads to: a fifo, a device.
func readSecretFile(path string, timeout time.Duration) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a fifo is opened without waiting for its writer
	if err != nil {
		return nil, err
	}
	defer f.Close()
	_ = f.SetReadDeadline(time.Now().Add(timeout)) // regular files have none, and need none
	return io.ReadAll(io.LimitReader(f, maxSecret+1))
}

// errNotOurs: the other side proved that it has another secret, or none.
var errNotOurs = errors.New("peer does not hold this job's secret")

// tlsFor derives the job's key pair from its secret; every rank has the same
// pair, and a process that proves possession of it is a rank. TLS 1.3 signs
// the handshake with the role in the text, so a proof cannot be mirrored.
// Without a secret the pair is known to all: then it only keeps programs
// apart that dial by mistake.
func tlsFor(secret []byte) (*tls.Config, error) {
	seed, err := hkdf.Key(sha256.New, secret, []byte("ibconduit bootstrap 1"), "ed25519 key of the job", ed25519.SeedSize)
	if err != nil {
		return nil, fmt.Errorf("derive the job's key: %w", err)
	}
	key := ed25519.NewKeyFromSeed(seed)
	pub := key.Public().(ed25519.PublicKey)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ibconduit job"},
		// Clocks of nodes differ; the key is what counts.
		NotBefore: time.Unix(0, 0), NotAfter: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	der, err := x509.CreateCertificate(nil, template, template, pub, key)
	if err != nil {
		return nil, fmt.Errorf("sign the job's certificate: %w", err)
	}
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		ClientAuth:             tls.RequireAnyClientCert,
		InsecureSkipVerify:     true, // names prove nothing here; VerifyConnection compares the key
		SessionTicketsDisabled: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			if len(cs.PeerCertificates) > 0 && pub.Equal(cs.PeerCertificates[0].PublicKey) {
				return nil
			}
			return errNotOurs
		},
	}, nil
}
