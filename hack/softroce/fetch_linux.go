package softroce

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/ibconduit/conduit/internal/atomicfile"
)

// unpack writes a guest's tar below dir, as far as it holds what was asked for: a guest does not
// choose where it writes.
func unpack(r io.Reader, dir string, asked []string) error {
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
		dst := filepath.Join(dir, hdr.Name)
		switch hdr.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(dst, 0o755)
		case tar.TypeReg:
			err = writeFile(dst, os.FileMode(hdr.Mode).Perm(), tr)
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

func writeFile(dst string, perm os.FileMode, r io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(dst), 0o755); err != nil {
		return err
	}
	f, err := atomicfile.Create(dst, perm)
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, r); err != nil {
		f.Discard()
		return err
	}
	return f.Close()
}
