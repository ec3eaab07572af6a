package metrics

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// announcement is the file by which Prometheus finds a rank. Its rank has it open, and locked where
// that can be done: the lock ends with the rank, however that ends.
type announcement struct {
	path string
	file *os.File
}

// files matches the announcements of a directory.
const files = "ibconduit-*.json"

// announce writes the file, and removes the files of ranks that have ended without doing so, which
// would be targets that do not answer.
func announce(dir string, addr *net.TCPAddr) (*announcement, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	target := addr.String()
	if addr.IP.IsUnspecified() {
		target = net.JoinHostPort(host, strconv.Itoa(addr.Port))
	}
	text, err := json.Marshal([]any{map[string]any{"targets": []string{target},
		"labels": map[string]string{"host": host}}})
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	// Prometheus must not read half of it: a name that it does not look for, then the other.
	f, err := os.CreateTemp(dir, ".ibconduit-*.tmp")
	if err != nil {
		return nil, fmt.Errorf("metrics: %s: %w", dirVar, err)
	}
	_ = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) // where it fails it is not removed
	_, err = f.Write(append(text, '\n'))
	err = errors.Join(err, f.Chmod(0o644))
	name := filepath.Join(dir, fmt.Sprintf("ibconduit-%s-%d.json", filepath.Base(host), addr.Port))
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("metrics: %s: %w", dirVar, err), f.Close(), os.Remove(f.Name()))
	}
	removeDead(dir)
	return &announcement{name, f}, nil
}

// removeDead removes files that no process holds.
func removeDead(dir string) {
	names, _ := filepath.Glob(filepath.Join(dir, files))
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = (&announcement{name, f}).remove() // what cannot be removed is no worse than before
		} else {
			_ = f.Close()
		}
	}
}

// remove ends the announcement. A file of its name that is another's by now, which has the port,
// stays.
func (a *announcement) remove() error {
	if a == nil {
		return nil
	}
	defer a.file.Close()
	own, err := a.file.Stat()
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	if there, err := os.Stat(a.path); err != nil || !os.SameFile(own, there) {
		return nil
	}
	if err := os.Remove(a.path); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}
