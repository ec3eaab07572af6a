package guest

import (
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// becomeCommand is the body of the agent's child when a command asked for little locked memory. It
// sets the limit, takes away CAP_IPC_LOCK, which would lift it for root (mm/mlock.c, ib_umem_get),
// and executes the command. args: limit in bytes, path, argv...
func becomeCommand(args []string) {
	runtime.LockOSThread() // the bounding set belongs to the thread that executes
	fail := func(what string, err error) {
		fmt.Fprintf(os.Stderr, "agent: %s: %v\n", what, err)
		os.Exit(126)
	}
	if len(args) < 3 {
		fail("arguments", unix.EINVAL)
	}
	n, err := strconv.ParseUint(args[0], 10, 64)
	if err != nil {
		fail("limit", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: n, Max: n}); err != nil {
		fail("limit locked memory", err)
	}
	if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_IPC_LOCK, 0, 0, 0); err != nil {
		fail("drop CAP_IPC_LOCK", err)
	}
	// CAP_SYS_RESOURCE would let the command raise the limit again.
	if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_RESOURCE, 0, 0, 0); err != nil {
		fail("drop CAP_SYS_RESOURCE", err)
	}
	fail("execute "+args[1], unix.Exec(args[1], args[2:], os.Environ()))
}
