// Package atomicfile writes files that are whole or as they were before, also where the disk
// becomes full or the program is killed meanwhile.
//
// Content goes to a file beside the one that is written, ".ibconduit-*.tmp", which reaches the disk
// and then takes its name, with its mode and, where that is allowed, its owner. A symbolic link
// stays, and the file it leads to is written. Another kind of file, as a pipe, a terminal or one
// that /dev/stdout names, is written itself.
package atomicfile

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// File is a file that is written. Its user is one goroutine.
type File struct {
	path string // "": f is written itself
	perm fs.FileMode
	had  fs.FileInfo // what is replaced, if there is something

	f      *os.File // beside path, from the first Write on
	failed error
}

// Create finds out whether path can be written, and changes nothing yet. perm, less the umask, is
// the mode of a file that is new.
func Create(path string, perm fs.FileMode) (*File, error) {
	to, itself, err := follow(path)
	if err != nil {
		return nil, &fs.PathError{Op: "create", Path: path, Err: cause(err)}
	}
	had, err := os.Lstat(to)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		had = nil
	case err != nil:
		return nil, err
	default: // may it be written?
		f, err := os.OpenFile(to, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return nil, err
		}
		if itself || !had.Mode().IsRegular() {
			return &File{f: f}, nil
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
	f := &File{path: to, perm: perm, had: had}
	if err := f.begin(); err != nil {
		return nil, err
	}
	f.Discard()
	return f, nil
}

// WriteFile writes the whole of a file.
func WriteFile(path string, content []byte, perm fs.FileMode) error {
	f, err := Create(path, perm)
	if err != nil {
		return err
	}
	_, _ = f.Write(content) // Close returns what failed
	return f.Close()
}

// follow is where path leads to, which need not exist. itself says that it is an open file of a
// process, which its owner does not write by name.
func follow(path string) (to string, itself bool, err error) {
	const most = 40 // as the kernel, path_resolution(7)
	for range most {
		dir, name := filepath.Split(path)
		if dir, err = filepath.EvalSymlinks(cmp.Or(dir, ".")); err != nil {
			return "", false, err
		}
		path = filepath.Join(dir, name)
		link, err := os.Readlink(path)
		switch {
		case err != nil: // no link
			return path, false, nil
		case strings.HasPrefix(dir, "/proc/"):
			return path, true, nil
		case !filepath.IsAbs(link):
			link = dir + "/" + link
		}
		path = link
	}
	return "", false, syscall.ELOOP
}

// begin makes the file beside the one that is written.
func (f *File) begin() error {
	for f.f == nil {
		name := filepath.Join(filepath.Dir(f.path), fmt.Sprintf(".ibconduit-%016x.tmp", rand.Uint64()))
		var err error
		f.f, err = os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, f.perm)
		switch {
		case errors.Is(err, fs.ErrExist):
		case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
			return fmt.Errorf("%s: its directory takes no new file, as which it is written until it is whole (%w); name a "+
				"file elsewhere", f.path, cause(err))
		case err != nil:
			return f.named(err)
		}
	}
	if f.had == nil {
		return nil
	}
	if s, ok := f.had.Sys().(*syscall.Stat_t); ok {
		_ = f.f.Chown(int(s.Uid), int(s.Gid)) // else it is this user's
	}
	return f.named(f.f.Chmod(f.had.Mode().Perm()))
}

// named is an error of the file beside, of the one that is written.
func (f *File) named(err error) error {
	if err == nil || f.path == "" {
		return err
	}
	op := "write"
	var of *fs.PathError
	if errors.As(err, &of) {
		op = of.Op
	}
	return &fs.PathError{Op: op, Path: f.path, Err: cause(err)}
}

// cause is the kernel's reason about a file, without its name.
func cause(err error) error {
	var no syscall.Errno
	if errors.As(err, &no) {
		return no
	}
	return err
}

// Write adds to the content.
func (f *File) Write(b []byte) (n int, err error) {
	if f.failed == nil && f.path != "" {
		f.failed = f.begin()
	}
	if f.failed == nil {
		n, err = f.f.Write(b)
		f.failed = f.named(err)
	}
	return n, f.failed
}

// Close gives the file its content. Where that fails, or a Write has failed, it is as before.
func (f *File) Close() error {
	if f.path == "" {
		return cmp.Or(f.failed, f.f.Close())
	}
	_, _ = f.Write(nil) // there may be no content
	if f.failed == nil {
		f.failed = f.named(f.f.Sync())
	}
	if f.failed == nil {
		f.failed = f.named(f.f.Close())
	}
	if f.failed == nil {
		f.failed = f.named(os.Rename(f.f.Name(), f.path))
	}
	if f.failed != nil {
		f.Discard()
		return f.failed
	}
	if d, err := os.Open(filepath.Dir(f.path)); err == nil {
		_ = d.Sync() // the content is there; not all file systems sync directories
		_ = d.Close()
	}
	return nil
}

// Discard leaves the file as it was.
func (f *File) Discard() {
	if f.f == nil || f.path == "" {
		return
	}
	_ = f.f.Close() // also a second time
	_ = os.Remove(f.f.Name())
	f.f = nil
}
