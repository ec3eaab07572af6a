package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

var (
	// bootModules are loaded in every guest before anything else works, the port of the agent
	// first.
	bootModules = []string{"virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay", "virtio_net", "virtio_blk", "veth", "bridge",
		"sch_netem", "dummy"}
	// rdmaModules make rxe0 possible. rxe asks the crypto layer for crc32: without crc32_generic,
	// adding the link fails with ENOENT.
	rdmaModules = []string{"crc32_generic", "ib_uverbs", "rdma_rxe", "rdma_ucm"}
	// optionalModules may be absent: newer kernels compute crc32 in a library, and soft
	// dependencies are wishes.
	optionalModules = []string{"crc32_generic"}
)

// moduleSet resolves names to files and their dependencies.
type moduleSet struct {
	paths   map[string]string // canonical name to file
	builtin map[string]bool
}

func newModuleSet(dir string) (*moduleSet, error) {
	m := &moduleSet{paths: map[string]string{}, builtin: map[string]bool{}}
	err := filepath.WalkDir(filepath.Join(dir, "kernel"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.Contains(d.Name(), ".ko") {
			m.paths[canonical(d.Name())] = path
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, path := range strings.Fields(string(b)) {
		m.builtin[canonical(filepath.Base(path))] = true
	}
	return m, nil
}

// canonical is a module's name without suffixes; dash and underscore are one to the kernel.
func canonical(name string) string {
	name, _, _ = strings.Cut(name, ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// module is one to be loaded, uncompressed.
type module struct {
	name string
	data []byte
}

// closure returns the modules that names need, each after those it depends on, without those in
// have.
func (m *moduleSet) closure(ctx context.Context, names []string, have map[string]bool) ([]module, error) {
	var list []module
	var add func(name string, required bool) error
	add = func(name string, required bool) error {
		name = canonical(name)
		if have[name] || m.builtin[name] {
			return nil
		}
		path, ok := m.paths[name]
		if !ok {
			if !required || slices.Contains(optionalModules, name) {
				return nil
			}
			return fmt.Errorf("softroce: this kernel has no module %s; name the package of one that has in IBCONDUIT_VM_KERNEL_PACKAGE (Debian's cloud kernel lacks rdma_rxe, Ubuntu's is in linux-modules-extra)", name)
		}
		have[name] = true
		data, err := readModule(ctx, path)
		if err != nil {
			return err
		}
		needs, err := moduleNeeds(data)
		if err != nil {
			return fmt.Errorf("softroce: %s: %w", path, err)
		}
		for _, n := range needs {
			if err := add(n, false); err != nil {
				return err
			}
		}
		list = append(list, module{name + ".ko", data})
		return nil
	}
	for _, n := range names {
		if err := add(n, true); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// readModule returns a module as the kernel loads it. Distributions compress them, and not every
// kernel decompresses.
func readModule(ctx context.Context, path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for _, c := range compressions {
		if !strings.HasSuffix(path, c.suffix) {
			continue
		}
		cmd := exec.CommandContext(ctx, c.argv[0], c.argv[1:]...)
		cmd.Stdin = bytes.NewReader(b)
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("softroce: decompress %s with %s: %w", filepath.Base(path), c.argv[0], err)
		}
		return out, nil
	}
	return b, nil
}
