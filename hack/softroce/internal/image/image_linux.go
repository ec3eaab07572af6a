package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// Image is a bootable pair of files.
type Image struct {
	Kernel  string // path
	Initrd  string // path
	Release string // as uname -r will say
	Package string // name_version of the kernel's package
}

// format changes when the way of building changes without a change of inputs.
const format = "2"

// Options of Prepare.
type Options struct {
	Dir    string    // build folder
	Agent  string    // path of the agent; default Dir/bin/agent
	Log    io.Writer // progress of slow steps; nil discards
	Update bool      // look for a newer kernel
}

// Prepare returns the image for the inputs as they are now, building it first where needed. It may
// run in several processes at once.
func Prepare(ctx context.Context, o Options) (*Image, error) {
	if runtime.GOARCH != "amd64" {
		return nil, fmt.Errorf("softroce: the VM runs on amd64 only, this is %s; use a machine with an RDMA device or hack/softroce/setup.sh", runtime.GOARCH)
	}
	if o.Agent == "" {
		o.Agent = filepath.Join(o.Dir, "bin", "agent")
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	agent, err := os.ReadFile(o.Agent)
	if err != nil {
		return nil, fmt.Errorf("softroce: the agent is not built: %w; run hack/softroce/vm prepare", err)
	}
	unlock, err := Lock(ctx, filepath.Join(o.Dir, "lock"))
	if err != nil {
		return nil, err
	}
	defer unlock()

	k, err := currentKernel(ctx, o)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(o.Dir, "image", imageKey(agent, k))
	if im, err := load(dir); err == nil {
		return im, nil
	}
	fmt.Fprintf(o.Log, "softroce: building the VM's image from %s\n", k.Package)
	return build(ctx, o, k, agent, dir)
}

func imageKey(agent []byte, k *kernelPackage) string {
	h := sha256.New()
	fmt.Fprintln(h, format, k.Package, bootModules, rdmaModules, optionalModules)
	h.Write(agent)
	return hex.EncodeToString(h.Sum(nil))[:16]
}

func load(dir string) (*Image, error) {
	b, err := os.ReadFile(filepath.Join(dir, "image.json"))
	if err != nil {
		return nil, err
	}
	im := new(Image)
	if err := json.Unmarshal(b, im); err != nil {
		return nil, err
	}
	im.Kernel, im.Initrd = filepath.Join(dir, "vmlinux"), filepath.Join(dir, "initrd.cpio")
	return im, nil
}

func build(ctx context.Context, o Options, k *kernelPackage, agent []byte, dir string) (*Image, error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".new-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	tree, err := k.unpack(ctx, tmp)
	if err != nil {
		return nil, err
	}
	if err := writeKernel(ctx, tree.kernel, filepath.Join(tmp, "vmlinux")); err != nil {
		return nil, err
	}
	if err := writeInitrd(ctx, filepath.Join(tmp, "initrd.cpio"), agent, tree); err != nil {
		return nil, err
	}
	b, err := json.MarshalIndent(Image{Release: tree.release, Package: k.Package}, "", "\t")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(tmp, "image.json"), b, 0o644); err != nil {
		return nil, err
	}
	if err := os.RemoveAll(tree.root); err != nil {
		return nil, err
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return nil, err
	}
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	if err := os.Rename(tmp, dir); err != nil {
		return nil, err
	}
	dropOldImages(filepath.Dir(dir), filepath.Base(dir))
	return load(dir)
}

// dropOldImages keeps the newest few: other working trees' agents may share the folder, and a VM
// may be about to boot one of them.
func dropOldImages(dir, current string) {
	const keep = 4
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for len(entries) > keep {
		oldest := -1
		var oldestInfo os.FileInfo
		for i, e := range entries {
			info, err := e.Info()
			if err != nil || e.Name() == current || strings.HasPrefix(e.Name(), ".") {
				continue
			}
			if oldest < 0 || info.ModTime().Before(oldestInfo.ModTime()) {
				oldest, oldestInfo = i, info
			}
		}
		if oldest < 0 {
			return
		}
		_ = os.RemoveAll(filepath.Join(dir, entries[oldest].Name()))
		entries = append(entries[:oldest], entries[oldest+1:]...)
	}
}

// Dir returns the build folder: IBCONDUIT_VM_DIR, or build/softroce of the repository that holds
// the working directory.
func Dir() (string, error) {
	if d := os.Getenv("IBCONDUIT_VM_DIR"); d != "" {
		return filepath.Abs(d)
	}
	root, err := Root()
	if err != nil {
		return "", err
	}
	return filepath.Join(root, "build", "softroce"), nil
}

// Root returns the repository: IBCONDUIT_SOFTROCE_ROOT, which the launcher sets, or the first
// folder above the working directory that holds the launcher.
func Root() (string, error) {
	if d := os.Getenv("IBCONDUIT_SOFTROCE_ROOT"); d != "" {
		return d, nil
	}
	d, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(d, "hack", "softroce", "vm")); err == nil {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", errors.New("softroce: not inside the repository; set IBCONDUIT_SOFTROCE_ROOT to it")
		}
		d = filepath.Dir(d)
	}
}
