package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	// libraryName is what memevents/build.sh makes.
	libraryName = "libmemevents.so"
	// librarySymbol is what package memevents looks for (memevents/ibc_mem.h).
	librarySymbol = "ibc_mem_root_v1"
	// envLibrary names the library in the place of those that are looked for.
	envLibrary = "IBCONDUIT_MEMEVENTS_LIB"
)

// preload is the variable LD_PRELOAD of all ranks: the library first, then its former value. before
// is that value, of the environment or of --env.
func preload(before string) (string, error) {
	lib, err := findLibrary()
	if err != nil {
		return "", err
	}
	// The loader separates by colons and blanks and knows no escape (ld.so(8)).
	if strings.ContainsAny(lib, ": \t\n") {
		return "", fmt.Errorf("--preload: %q: LD_PRELOAD cannot hold a path with a blank or a colon; "+
			"copy the library elsewhere and set %s", lib, envLibrary)
	}
	list := []string{lib}
	for _, l := range strings.FieldsFunc(before, func(r rune) bool { return strings.ContainsRune(": \t\n", r) }) {
		if !slices.Contains(list, l) {
			list = append(list, l)
		}
	}
	return "LD_PRELOAD=" + strings.Join(list, ":"), nil
}

// findLibrary looks where envLibrary says, or else where installations and the source tree have the
// library.
func findLibrary() (string, error) {
	if path := os.Getenv(envLibrary); path != "" {
		abs, err := filepath.Abs(path) // ranks may run elsewhere
		if err == nil {
			err = usable(abs)
		}
		if err != nil {
			return "", fmt.Errorf("--preload: %s=%s: %w; memevents/build.sh makes the library", envLibrary, path, err)
		}
		return abs, nil
	}
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return "", fmt.Errorf("--preload: where this program is: %w; set %s", err, envLibrary)
	}
	return findBeside(filepath.Dir(self))
}

// findBeside looks relative to the directory of the program: beside it, in the lib of a prefix, and
// in build/.
func findBeside(dir string) (string, error) {
	var looked []string
	for _, rel := range []string{".", "../lib", "../lib/ibconduit", ".."} {
		path := filepath.Join(dir, rel, libraryName)
		err := usable(path)
		switch {
		case err == nil:
			return path, nil
		case !errors.Is(err, fs.ErrNotExist):
			return "", fmt.Errorf("--preload: %s: %w; remove it or set %s", path, err, envLibrary)
		}
		looked = append(looked, filepath.Dir(path))
	}
	return "", fmt.Errorf("--preload: no %s in %s; make it with memevents/build.sh -o FILE and set %s=FILE",
		libraryName, strings.Join(looked, ", "), envLibrary)
}

// usable opens the library as the loader would, which only warns about what it cannot load and goes
// on.
func usable(path string) error {
	f, err := elf.Open(path)
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		return pe.Err // callers name the path
	}
	if err != nil {
		return fmt.Errorf("it is no shared library: %w", err)
	}
	defer f.Close()
	if self, err := elf.Open("/proc/self/exe"); err == nil {
		defer self.Close()
		if f.Machine != self.Machine || f.Class != self.Class {
			return fmt.Errorf("it is for %v, this machine's programs are for %v", f.Machine, self.Machine)
		}
	}
	symbols, err := f.DynamicSymbols()
	if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
		return err
	}
	if f.Type != elf.ET_DYN || !slices.ContainsFunc(symbols, func(s elf.Symbol) bool {
		return s.Name == librarySymbol && s.Section != elf.SHN_UNDEF
	}) {
		return errors.New("it is no " + libraryName)
	}
	return nil
}
