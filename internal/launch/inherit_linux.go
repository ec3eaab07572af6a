package launch

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// firstExtra is the number of the first descriptor beyond standard error.
const firstExtra = 3

// layout says which descriptors a rank has beyond the standard ones: those that this process
// inherited keep their numbers, ours come behind those below 10.
type layout struct {
	files []*os.File // from firstExtra; nil where there is none
	ours  map[int]bool
	limit int // numbers end before
}

// users are the files of inherited descriptors, kept for as long as the process lives: one that is
// collected would close the descriptor.
var users struct {
	mu    sync.Mutex
	files map[int]*os.File
}

func userFile(fd int) *os.File {
	users.mu.Lock()
	defer users.mu.Unlock()
	if users.files == nil {
		users.files = map[int]*os.File{}
	}
	if users.files[fd] == nil {
		users.files[fd] = os.NewFile(uintptr(fd), "descriptor "+strconv.Itoa(fd))
	}
	return users.files[fd]
}

// newLayout finds what a child would inherit. What this process, or its runtime, has opened for
// itself closes on exec.
func newLayout(env func(string) string) layout {
	hideOuter(env)
	var limit unix.Rlimit
	l := layout{limit: 1 << 20}
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil && limit.Cur < uint64(l.limit) {
		l.limit = int(limit.Cur)
	}
	for _, fd := range opened(l.limit) {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue
		}
		if fd+reserve >= l.limit {
			break // it is inherited all the same, as long as a process that starts needs no number above
		}
		l.files = append(l.files, make([]*os.File, fd-firstExtra-len(l.files))...)
		l.files = append(l.files, userFile(fd))
	}
	return l
}

// opened are the descriptors from firstExtra that may be open, ascending.
func opened(limit int) (fds []int) {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil { // no /proc
		for fd := firstExtra; fd < min(limit, 1<<16); fd++ {
			fds = append(fds, fd)
		}
		return fds
	}
	for _, n := range names {
		if fd, err := strconv.Atoi(n.Name()); err == nil && fd >= firstExtra {
			fds = append(fds, fd)
		}
	}
	slices.Sort(fds)
	return fds
}

// hideOuter closes on exec what an outer job gave to this process as one of its ranks: the ranks of
// the inner job have no business with it.
func hideOuter(env func(string) string) {
	for _, v := range outer {
		number, inode, tagged := strings.Cut(env(v), ":")
		fd, err := strconv.Atoi(number)
		if !tagged || err != nil || fd < firstExtra || !strings.HasSuffix(v, "_FD") {
			continue
		}
		var st unix.Stat_t
		if unix.Fstat(fd, &st) == nil && strconv.FormatUint(st.Ino, 10) == inode {
			unix.CloseOnExec(fd)
		}
	}
}

// add gives a file the first free number behind those that scripts use: shells keep what they
// opened for themselves from 10 on, and some cannot name such a number.
func (l *layout) add(f *os.File) (number int) {
	least := 0
	for i := range min(len(l.files), 10-firstExtra) {
		if l.files[i] != nil && !l.ours[i] {
			least = i + 1
		}
	}
	i := least
	for i < len(l.files) && l.files[i] != nil {
		i++
	}
	l.files = append(l.files, make([]*os.File, max(0, i+1-len(l.files)))...)
	l.files[i] = f
	l.ours[i] = true
	return firstExtra + i
}

// reserve of numbers that the start of a process takes.
const reserve = 16

func (l *layout) clone() layout { return layout{slices.Clone(l.files), map[int]bool{}, l.limit} }
