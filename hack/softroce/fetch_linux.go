package softroce

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// unpack writes a guest's tar, as far as it holds what was asked for: a guest does not choose where it writes.
func unpack(r io.Reader, asked []string) error {
	tr := tar.NewReader(r)
	for {
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("softroce: fetched archive: %w", err)
		}
		if !within(hdr.Name, asked) {
			return fmt.Errorf("softroce: the guest sent %q, which was not asked for", hdr.Name)
		}
		switch hdr.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(hdr.Name, 0o755)
		case tar.TypeReg:
			err = writeFile(hdr, tr)
		}
		if err != nil {
			return err
		}
	}
}

func within(name string, asked []string) bool {
	if filepath.Clean(name) != name {
		return false
	}
	for _, a := range asked {
		a = filepath.Clean(a)
		if name == a || strings.HasPrefix(name, strings.TrimSuffix(a, "/")+"/") {
			return true
		}
	}
	return false
}

func writeFile(hdr *tar.Header, r io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(hdr.Name), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(hdr.Name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, os.FileMode(hdr.Mode).Perm())
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, r); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
