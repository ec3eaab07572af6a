package guest

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/internal/mux"
)

// sendTar writes the files and directories at paths as a tar with absolute names. What does not
// exist is left out: a test that fails early has written no profile.
func sendTar(out *mux.Stream, paths []string) error {
	tw := tar.NewWriter(out)
	for _, p := range paths {
		err := filepath.WalkDir(p, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			return addToTar(tw, path, d)
		})
		if err != nil {
			return fmt.Errorf("fetch %s: %w", p, err)
		}
	}
	if err := tw.Close(); err != nil {
		return err
	}
	return out.CloseWrite()
}

func addToTar(tw *tar.Writer, path string, d fs.DirEntry) error {
	if !d.IsDir() && !d.Type().IsRegular() {
		return nil
	}
	st, err := d.Info()
	if err != nil {
		return err
	}
	hdr := &tar.Header{Name: path, Mode: int64(st.Mode().Perm()), Typeflag: tar.TypeDir}
	if d.IsDir() {
		return tw.WriteHeader(hdr)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	hdr.Typeflag, hdr.Size = tar.TypeReg, st.Size()
	if err := tw.WriteHeader(hdr); err != nil {
		return err
	}
	_, err = io.CopyN(tw, f, st.Size())
	return err
}

// sendKernelLog writes the kernel's log as dmesg would.
func sendKernelLog(out *mux.Stream) error {
	const readAll, size = 3, 10 // SYSLOG_ACTION_READ_ALL, SYSLOG_ACTION_SIZE_BUFFER of syslog(2)
	n, err := unix.Klogctl(size, nil)
	if err != nil {
		return fmt.Errorf("size of the kernel's log: %w", err)
	}
	buf := make([]byte, n)
	if n, err = unix.Klogctl(readAll, buf); err != nil {
		return fmt.Errorf("read the kernel's log: %w", err)
	}
	if _, err := out.Write(buf[:n]); err != nil {
		return err
	}
	return out.CloseWrite()
}
