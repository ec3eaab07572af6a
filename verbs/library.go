//go:build linux && cgo

package verbs

/*
#include <stdlib.h>
#include "ibc_verbs.h"
*/
import "C"

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"unsafe"
)

// soname is the name that libibverbs is found by.
const soname = "libibverbs.so.1"

// Library loads libibverbs and returns the file that it is in. [Devices] and [Open] do so by
// themselves; a process looks once, and every later call returns the same.
//
// A library that is in the process already, because it was preloaded (LD_PRELOAD) or linked, is
// used. Else the dynamic linker looks for libibverbs.so.1, or the file that [EnvLibrary] names. A
// call that is preloaded without the others comes before the library's.
//
// The error is ErrNoLibrary: libibverbs is not installed, does not load, or is too old, and then
// the error names the calls that it lacks.
func Library() (string, error) { return library() }

var library = sync.OnceValues(func() (string, error) { return findLibrary(os.Getenv(EnvLibrary)) })

func findLibrary(file string) (string, error) {
	if C.ibc_bind_library() == 0 {
		return C.GoString(C.ibc_library_file()), nil
	}
	named := file != ""
	if !named {
		file = soname
	}
	name := C.CString(file)
	defer C.free(unsafe.Pointer(name))
	if why := C.ibc_load_library(name); why != nil {
		return "", notLoaded(file, C.GoString(why), named)
	}
	if C.ibc_bind_library() != 0 {
		return "", tooOld(file, missingCalls())
	}
	return C.GoString(C.ibc_library_file()), nil
}

// missingCalls are those that were not found, nil if that is all of them.
func missingCalls() (calls []string) {
	for i := range C.int(C.IBC_CALL_COUNT) {
		var version *C.char
		if name := C.ibc_missing(i, &version); name != nil {
			calls = append(calls, C.GoString(name)+"@"+C.GoString(version))
		}
	}
	if len(calls) == C.IBC_CALL_COUNT {
		return nil
	}
	return calls
}

const installLibrary = "install it (Debian, Ubuntu: apt-get install libibverbs1 ibverbs-providers; Fedora, RHEL: " +
	"dnf install libibverbs), or name the file in " + EnvLibrary +
	"; ranks of one host need no RDMA and use shared memory"

func notLoaded(file, why string, named bool) error {
	e := &Error{Op: "load " + file, Err: ErrNoLibrary, Detail: why, Remedy: installLibrary}
	if named {
		e.Remedy = fmt.Sprintf("%s names it: correct that, or unset it to use %s", EnvLibrary, soname)
	}
	return e
}

func tooOld(file string, lacks []string) error {
	if lacks == nil {
		return &Error{Op: "load " + file, Err: ErrNoLibrary, Detail: "it has none of the calls of libibverbs",
			Remedy: "name another file in " + EnvLibrary}
	}
	return &Error{Op: "load " + file, Err: ErrNoLibrary, Detail: "it lacks " + strings.Join(lacks, ", "),
		Remedy: "install libibverbs 1.1 or newer (any rdma-core), or name another file in " + EnvLibrary}
}
