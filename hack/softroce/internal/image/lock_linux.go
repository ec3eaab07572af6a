package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Lock takes an exclusive flock(2) on a file, which it creates, and returns the release. The lock
// ends with the process.
func Lock(ctx context.Context, file string) (func(), error) {
	return LockOne(ctx, []string{file}, nil)
}

// LockOne takes the first of several locks that is free. waiting, when given, is called once if
// none is at first.
func LockOne(ctx context.Context, files []string, waiting func()) (func(), error) {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		for _, file := range files {
			f, err := tryLock(file)
			if err == nil {
				return func() { f.Close() }, nil
			}
			if !errors.Is(err, unix.EWOULDBLOCK) {
				return nil, fmt.Errorf("softroce: lock %s: %w", file, err)
			}
		}
		if waiting != nil {
			waiting()
			waiting = nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("softroce: waiting for %s, which another process holds: %w", files[0], context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}

func tryLock(file string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
