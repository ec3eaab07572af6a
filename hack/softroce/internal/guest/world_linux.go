package guest

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ibconduit/conduit/hack/softroce/internal/wire"
	"github.com/ibconduit/conduit/internal/swap"
)

// swapDisk is the only disk there is.
const swapDisk = "/dev/vda"

// RootTag is the 9p mount tag of the host's root.
const RootTag = "hostroot"

type mountPoint struct {
	source, target, fstype string
	flags                  uintptr
	options                string
}

func (m mountPoint) mount() error {
	if err := os.MkdirAll(m.target, 0o755); err != nil {
		return fmt.Errorf("mount point %s: %w", m.target, err)
	}
	if err := unix.Mount(m.source, m.target, m.fstype, m.flags, m.options); err != nil {
		return fmt.Errorf("mount %s on %s: %w", m.fstype, m.target, err)
	}
	return nil
}

// buildWorld turns the initrd's bare machine into the one that commands see.
func buildWorld(s *wire.Setup) error {
	if s.RDMA {
		if err := loadModules(RDMAList); err != nil {
			return err
		}
	}
	if err := enterRoot(); err != nil {
		return err
	}
	for _, sh := range s.Shares {
		// mmap: a shared writable mapping works, which without a cache it does not.
		m := mountPoint{sh.Tag, sh.Path, "9p", 0, "trans=virtio,version=9p2000.L,msize=512000,cache=mmap"}
		if err := m.mount(); err != nil {
			return err
		}
	}
	if err := unix.Sethostname([]byte(s.Hostname)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	// The host's file may be a link or unwritable; the upper layer takes any file.
	_ = os.Remove("/etc/hosts")
	if err := os.WriteFile("/etc/hosts", []byte(strings.Join(s.Hosts, "\n")+"\n"), 0o644); err != nil {
		return err
	}
	if s.HugePages > 0 {
		if err := reserveHugePages(s.HugePages); err != nil {
			return err
		}
	}
	if s.SwapMB > 0 {
		if err := swap.On(swapDisk, int64(s.SwapMB)<<20); err != nil {
			return err
		}
	}
	if err := setupNetwork(s); err != nil {
		return err
	}
	return onlineCPUs() // last: see there
}

// enterRoot puts the host's root, read-only, under an overlay in memory, and makes that the root of
// this process.
func enterRoot() error {
	for _, m := range []mountPoint{
		{RootTag, "/host", "9p", unix.MS_RDONLY, "trans=virtio,version=9p2000.L,msize=512000,cache=loose"},
		{"tmpfs", "/rw", "tmpfs", 0, "mode=755"},
	} {
		if err := m.mount(); err != nil {
			return err
		}
	}
	for _, d := range []string{"/rw/upper", "/rw/work", "/newroot"} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	const root = "/newroot"
	for _, m := range []mountPoint{
		{"overlay", root, "overlay", 0, "lowerdir=/host,upperdir=/rw/upper,workdir=/rw/work"},
		{"/proc", root + "/proc", "", unix.MS_MOVE, ""},
		{"/sys", root + "/sys", "", unix.MS_MOVE, ""},
		{"/dev", root + "/dev", "", unix.MS_MOVE, ""},
		{"tmpfs", root + "/run", "tmpfs", 0, "mode=755"},
		{"tmpfs", root + "/dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		{"devpts", root + "/dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "ptmxmode=666"},
		{"hugetlbfs", root + "/dev/hugepages", "hugetlbfs", 0, "mode=1770"},
		{"cgroup2", root + "/sys/fs/cgroup", "cgroup2", 0, ""},
	} {
		if err := m.mount(); err != nil {
			return err
		}
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the new root into place: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	return os.Chdir("/")
}

func reserveHugePages(n int) error {
	const file = "/proc/sys/vm/nr_hugepages"
	if err := os.WriteFile(file, []byte(strconv.Itoa(n)), 0o644); err != nil {
		return err
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if got, _ := strconv.Atoi(strings.TrimSpace(string(b))); got < n {
		return fmt.Errorf("the guest's memory holds only %d of %d huge pages of 2 MiB; give it more with -mem", got, n)
	}
	return nil
}
