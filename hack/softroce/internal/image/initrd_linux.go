package image

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"github.com/ibconduit/conduit/hack/softroce/internal/guest"
)

// writeInitrd writes an uncompressed archive: decompression would cost more under emulation than
// reading does.
func writeInitrd(ctx context.Context, file string, agent []byte, tree *kernelTree) error {
	set, err := newModuleSet(tree.modules)
	if err != nil {
		return err
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	out := bufio.NewWriterSize(f, 1<<20)
	w := &cpioWriter{w: out}
	w.dir("dev")
	w.char("dev/console", 5, 1) // init's standard streams
	w.char("dev/null", 1, 3)    // the Go runtime opens it for missing ones
	w.file("init", 0o755, agent)
	w.dir(strings.TrimPrefix(guest.ModuleDir, "/"))
	have := map[string]bool{}
	for _, l := range []struct {
		list  string
		names []string
	}{{guest.BootList, bootModules}, {guest.RDMAList, rdmaModules}} {
		mods, err := set.closure(ctx, l.names, have)
		if err != nil {
			return err
		}
		var order strings.Builder
		for _, m := range mods {
			fmt.Fprintln(&order, m.name)
			w.file(path.Join(guest.ModuleDir, m.name)[1:], 0o644, m.data)
		}
		w.file(path.Join(guest.ModuleDir, l.list)[1:], 0o644, []byte(order.String()))
	}
	w.end()
	if w.err != nil {
		return w.err
	}
	if err := out.Flush(); err != nil {
		return err
	}
	return f.Close()
}

// cpioWriter writes the "newc" format that the kernel unpacks
// (Documentation/driver-api/early-userspace/buffer-format).
type cpioWriter struct {
	w   io.Writer
	ino uint32
	err error
}

func (c *cpioWriter) dir(name string) { c.entry(name, 0o040755, 0, 0, nil) }
func (c *cpioWriter) char(name string, major, minor uint32) {
	c.entry(name, 0o020600, major, minor, nil)
}
func (c *cpioWriter) file(name string, perm uint32, data []byte) {
	c.entry(name, 0o100000|perm, 0, 0, data)
}
func (c *cpioWriter) end() { c.entry("TRAILER!!!", 0, 0, 0, nil) }

func (c *cpioWriter) entry(name string, mode, major, minor uint32, data []byte) {
	c.ino++
	// magic, ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor,
	// namesize, check
	hdr := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		c.ino, mode, 0, 0, 1, 0, len(data), 0, 0, major, minor, len(name)+1, 0)
	c.padded([]byte(hdr + name + "\x00"))
	c.padded(data)
}

func (c *cpioWriter) padded(b []byte) {
	if c.err == nil {
		_, c.err = c.w.Write(b)
	}
	if pad := -len(b) & 3; pad > 0 && c.err == nil {
		_, c.err = c.w.Write(make([]byte, pad))
	}
}
