package memgroup

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/swap"
)

// FreeSwap is how many bytes of swap space are free.
func FreeSwap() int64 { return swap.Free() }

// Swap is swap space in a file.
type Swap struct{ path string }

// MakeSwap adds a file of so many bytes to the machine's swap space.
func MakeSwap(dir string, bytes int64) (*Swap, error) {
	f, err := os.CreateTemp(dir, "ibbench-swap-*")
	if err != nil {
		return nil, err
	}
	s := &Swap{f.Name()}
	// A file with holes is refused (swapon(2)).
	if err = errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, bytes), f.Close()); err == nil {
		err = swap.On(s.path, bytes)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("swap space of %d bytes: %w; %s", bytes, err, Remedy), os.Remove(s.path))
	}
	return s, nil
}

// Remove takes the file out of the swap space and deletes it.
func (s *Swap) Remove() error {
	if err := swap.Off(s.path); err != nil {
		return err
	}
	return os.Remove(s.path)
}
