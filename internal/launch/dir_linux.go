package launch

import (
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// The directory of a job's socket, and its files.
const (
	dirPrefix  = "ibrun-"
	socketName = "rank0"
	lockName   = "lock" // locked while the job's ibrun lives, however it ends
)

func socketParents() []string {
	parents := []string{"/tmp", "/dev/shm"}
	if temp, err := filepath.Abs(os.TempDir()); err == nil { // others run elsewhere
		parents = append([]string{temp}, parents...)
	}
	return parents
}

// removeDir removes a job's directory.
func removeDir(dir string) {
	for _, name := range []string{socketName, lockName} {
		_ = os.Remove(filepath.Join(dir, name))
	}
	_ = os.Remove(dir)
}

// holdDir keeps the directory from removeDead. A directory that is not locked yet has another name.
// nil: no process will remove it.
func holdDir(dir string) *os.File {
	name := filepath.Join(dir, lockName)
	f, err := os.OpenFile(name+".new", os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil
	}
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil || os.Rename(f.Name(), name) != nil {
		_ = os.Remove(f.Name())
		_ = f.Close()
		return nil
	}
	return f
}

// removeDead removes the directories of this user's jobs that ended with no process left to do it,
// as when ibrun and its guard are killed with all of their control group.
func removeDead() {
	for _, parent := range socketParents() {
		dirs, _ := filepath.Glob(filepath.Join(parent, dirPrefix+"*"))
		for _, dir := range dirs {
			if ownDir(dir) && !isHeld(dir) {
				removeDir(dir)
			}
		}
	}
}

// ownDir: it is a directory that only this user may change.
func ownDir(dir string) bool {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() || info.Mode().Perm() != 0o700 {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}

// isHeld: its ibrun lives, or that cannot be said.
func isHeld(dir string) bool {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return true
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil
}
