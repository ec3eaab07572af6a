package bootstrap

import "golang.org/x/sys/unix"

// life is this process's end of a pipe to its launcher, which watches it, or 0. The launcher
// takes the order in which the pipes of the ranks end for the order in which the ranks began to
// end. Nothing closes it: its end means the process's.
type life int

// lifeNumber is about the descriptor to which the pipe is moved. A dying process closes its
// descriptors from the highest down: the pipe must end before any connection does, or a peer that
// reacts to that is taken for the first. A higher number would cost more, 8 bytes of table for each
// below it.
const lifeNumber = 1 << 14

// holdLife takes the pipe that the launcher gave. A missing one is no error: this may be a
// second job of the process, or a child that inherited only the variable.
func holdLife(env environment) life {
	const variable = "IBCONDUIT_LIFE_FD"
	spec := env.get(variable)
	if spec == "" {
		return 0
	}
	f, err := adoptFD(variable, spec)
	if err != nil {
		return 0
	}
	defer f.Close()
	for _, least := range []int{highest(), 0} { // low is better than not at all
		if fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, least); err == nil {
			return life(fd)
		}
	}
	return 0
}

// highest is the highest descriptor that this process may open, up to lifeNumber.
func highest() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return int(min(limit.Cur, lifeNumber)) - 1
}

// ending lets the launcher know that this rank ends the job, before any peer can notice.
func (l life) ending() {
	if l > 0 {
		_, _ = unix.Write(int(l), []byte{1}) // an error: there is no launcher
	}
}
