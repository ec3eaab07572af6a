//go:build linux && cgo

package pmix

/*
#cgo CFLAGS: -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "ibc_pmix.h"
*/
import "C"

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"unsafe"
)

// files are tried in this order: OpenPMIx 3 to 6 have the first name.
var files = []string{"libpmix.so.2", "libpmix.so"}

// The versions with the layouts of ibc_pmix.h.
const oldest, newest = 3, 6

var loaded struct {
	sync.Mutex
	done    bool
	version string
	err     error
}

// Load loads the library, once in the life of a process, and returns the version that it says it
// has. file is EnvLibrary's; "" looks for libpmix.so.2 where the dynamic linker does. The
// error is ErrNoLibrary.
func Load(file string) (version string, err error) {
	loaded.Lock()
	defer loaded.Unlock()
	if !loaded.done {
		loaded.done = true
		loaded.version, loaded.err = load(file)
	}
	return loaded.version, loaded.err
}

func load(file string) (string, error) {
	names := files
	if file != "" {
		names = []string{file}
	}
	var failed []string
	for _, name := range names {
		c := C.CString(name)
		why := C.ibc_pmix_load(c)
		C.free(unsafe.Pointer(c))
		if why != nil {
			failed = append(failed, name+": "+strings.TrimPrefix(C.GoString(why), name+": "))
			continue
		}
		version := C.GoString(C.ibc_pmix_version())
		if err := known(version); err != nil {
			return "", fmt.Errorf("%w: %s is %w", ErrNoLibrary, name, err)
		}
		return version, nil
	}
	remedy := "install it (Debian, Ubuntu: apt-get install libpmix2), or name the file in " + EnvLibrary
	if file != "" {
		remedy = EnvLibrary + " names it"
	}
	return "", fmt.Errorf("%w: %s; %s", ErrNoLibrary, strings.Join(failed, "; "), remedy)
}

var number = regexp.MustCompile(`\d+(?:\.\d+)+`)

// known refuses libraries with layouts that were never compared with ours.
func known(version string) error {
	n := number.FindString(version)
	major, _, _ := strings.Cut(n, ".")
	if v, err := strconv.Atoi(major); err != nil || v < oldest || v > newest {
		return fmt.Errorf("%q: versions %d to %d are known", version, oldest, newest)
	}
	return nil
}
