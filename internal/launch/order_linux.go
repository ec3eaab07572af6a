package launch

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// deaths tells in which order ranks began to end. The order in which they can
// be waited for is another: a dying process closes its connections, on which
// its peers give up and exit, well before it is a zombie itself, most of all
// if it has many threads or much memory. But it closes its output at the same
// time as its connections, and one epoll instance reports the ends of the
// ranks' pipes in the order in which they came. A rank whose output is held by
// a child of its own has no place in this order until that has ended too.
type deaths struct {
	epoll int
	stop  *os.File // closing it ends the goroutine
	ended chan struct{}

	mu    sync.Mutex
	open  map[int32]*rank // by descriptor
	left  map[*rank]int   // ends of output that are still open
	order map[*rank]int
}

func watchDeaths() (*deaths, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("launch: epoll_create1: %w", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		unix.Close(epoll)
		return nil, fmt.Errorf("launch: %w", err)
	}
	d := &deaths{
		epoll: epoll, stop: w, ended: make(chan struct{}),
		open: map[int32]*rank{}, left: map[*rank]int{}, order: map[*rank]int{},
	}
	if err := d.add(r, nil); err != nil {
		r.Close()
		w.Close()
		unix.Close(epoll)
		return nil, err
	}
	go d.watch(r)
	return d, nil
}

// add watches for the end of one pipe and for nothing else: no events are
// asked for, and EPOLLHUP comes unasked (epoll_ctl(2)).
func (d *deaths) add(pipe *os.File, k *rank) error {
	raw, err := pipe.SyscallConn()
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var ctl error
	err = raw.Control(func(fd uintptr) {
		ctl = unix.EpollCtl(d.epoll, unix.EPOLL_CTL_ADD, int(fd), &unix.EpollEvent{Events: unix.EPOLLONESHOT, Fd: int32(fd)})
		d.open[int32(fd)] = k
	})
	if k != nil {
		d.left[k]++
	}
	if err == nil && ctl != nil {
		err = fmt.Errorf("launch: epoll_ctl: %w", ctl)
	}
	return err
}

func (d *deaths) watch(stop *os.File) {
	defer close(d.ended)
	defer stop.Close()
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(d.epoll, events, -1)
		if err != nil && err != unix.EINTR {
			return
		}
		d.mu.Lock()
		for _, ev := range events[:max(n, 0)] {
			k := d.open[ev.Fd]
			if k == nil {
				d.mu.Unlock()
				return
			}
			if d.left[k]--; d.left[k] == 0 {
				d.order[k] = len(d.order) + 1
			}
		}
		d.mu.Unlock()
	}
}

// place of a rank in the order of deaths, from 1; ok is false when none is
// known.
func (d *deaths) place(k *rank) (n int, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, ok = d.order[k]
	return n, ok
}

func (d *deaths) close() {
	_ = d.stop.Close()
	<-d.ended
	_ = unix.Close(d.epoll)
}
