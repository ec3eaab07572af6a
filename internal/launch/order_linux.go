package launch

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// deaths finds in which order ranks began to end. The order in which they can be waited for is
// another: a process closes its connections, on which its peers give up and exit, well before it is
// a zombie, most of all if it has many threads or much memory, or if the machine is busy.
//
// Each rank holds the writing end of a pipe of its own, its life pipe, and nothing else does. One
// epoll instance lists the ends of these pipes in the order in which they came (ep_poll_callback of
// fs/eventpoll.c puts them at the tail of one list). A dying process closes its descriptors from
// the highest number down: close_files (fs/file.c) goes up, but each fput (fs/file_table.c) is only
// put on a list of work that task_work_run (kernel/task_work.c) takes from its head. So package
// bootstrap moves the pipe above all other descriptors: its end is seen here before any peer sees
// the end of a connection.
//
// A rank that ends the job (Abort of package bootstrap) writes a byte before any peer learns it.
//
// A rank with a child that holds its pipe has no place in the order until that has ended
// too.
type deaths struct {
	poller *os.File // the epoll instance

	mu    sync.Mutex // guards what follows, and taking events
	epoll int        // -1 once closed
	ranks map[int32]*child
	order map[*child]int
	noted func(c *child) // may be nil
}

func watchDeaths() (*deaths, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("launch: epoll_create1: %w", err)
	}
	if err := unix.SetNonblock(epoll, true); err != nil { // so that Go's own poller waits for it
		unix.Close(epoll)
		return nil, fmt.Errorf("launch: epoll: %w", err)
	}
	return &deaths{poller: os.NewFile(uintptr(epoll), "epoll"), epoll: epoll, ranks: map[int32]*child{},
		order: map[*child]int{}}, nil
}

// add watches the reading end of a rank's life pipe, which must stay open.
func (d *deaths) add(k *child) error {
	raw, err := k.life.SyscallConn()
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var ctl error
	err = raw.Control(func(fd uintptr) {
		d.ranks[int32(fd)] = k
		ctl = unix.EpollCtl(d.epoll, unix.EPOLL_CTL_ADD, int(fd),
			&unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(fd)})
	})
	if err == nil && ctl != nil {
		err = fmt.Errorf("launch: epoll_ctl: %w", ctl)
	}
	return err
}

// setNoted has f called, in the order of deaths, with each.
func (d *deaths) setNoted(f func(c *child)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.noted = f
}

// watch notes deaths as they come, until close. Without it a pipe that a living rank closed could
// be noted only when that rank ends for another reason.
func (d *deaths) watch() {
	raw, err := d.poller.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(uintptr) bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.takeLocked()
		return false
	})
}

// takeLocked notes the ends that epoll has. The lock keeps place from missing an event that
// another goroutine has taken and not noted yet.
func (d *deaths) takeLocked() {
	events := make([]unix.EpollEvent, 64)
	for d.epoll >= 0 {
		n, err := unix.EpollWait(d.epoll, events, 0)
		if err == unix.EINTR {
			continue
		}
		for _, ev := range events[:max(n, 0)] {
			k := d.ranks[ev.Fd]
			if ev.Events&unix.EPOLLIN == 0 && !k.dying() {
				continue
			}
			d.order[k] = len(d.order) + 1
			if d.noted != nil {
				d.noted(k)
			}
		}
		if n <= 0 {
			return
		}
	}
}

// place of a rank in the order of deaths, from 1; ok is false when none is known. What happened
// before the call is known to it.
func (d *deaths) place(k *child) (n int, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.takeLocked()
	n, ok = d.order[k]
	return n, ok
}

// look notes the deaths that have happened before the call.
func (d *deaths) look() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.takeLocked()
}

func (d *deaths) close() {
	d.mu.Lock()
	d.epoll = -1
	d.mu.Unlock() // watch needs it to end, and Close waits for that
	_ = d.poller.Close()
}

// exiting is PF_EXITING (include/linux/sched.h), which do_exit sets before it closes anything.
const exiting = 0x4

// dying reports a rank that ends, not one that has only closed its life pipe, as a program does
// that closes all descriptors that it does not know. Without /proc each is dying: most programs
// close nothing that they do not know.
func (c *child) dying() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := readStat(c.cmd.Process.Pid)
	return c.reaped || !ok || p.flags&exiting != 0
}
