package guest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// loadModules loads the modules that a list of the initrd names, in its order.
func loadModules(list string) error {
	b, err := os.ReadFile(filepath.Join(ModuleDir, list))
	if err != nil {
		return fmt.Errorf("module list: %w", err)
	}
	for _, name := range strings.Fields(string(b)) {
		if err := loadModule(filepath.Join(ModuleDir, name)); err != nil {
			return err
		}
	}
	return nil
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.FinitModule(int(f.Fd()), "", 0)
	// ENODEV: a module for a CPU feature that is not here (crc32_pclmul); its generic sibling
	// serves.
	if err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("load module %s: %w", filepath.Base(path), err)
	}
	return nil
}
