package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/ibconduit/conduit/internal/atomicfile"
)

// kernelPackage is the kernel as downloaded.
type kernelPackage struct {
	Package string   // name_version, for humans and for the key
	Debs    []string // file names in Dir/deb
	dir     string
}

// kernelTree is the kernel unpacked.
type kernelTree struct {
	root    string // temporary folder
	kernel  string // bzImage
	modules string // .../lib/modules/RELEASE
	release string
}

// currentKernel returns the kernel downloaded before, or downloads the distribution's current one.
func currentKernel(ctx context.Context, o Options) (*kernelPackage, error) {
	dir := filepath.Join(o.Dir, "deb")
	record := filepath.Join(dir, "kernel.json")
	if !o.Update {
		if k, err := recordedKernel(record, dir); err == nil {
			return k, nil
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	names, err := kernelPackageNames(ctx)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(o.Log, "softroce: downloading %s (once)\n", strings.Join(names, " "))
	k := &kernelPackage{dir: dir}
	for _, name := range names {
		deb, err := download(ctx, dir, name)
		if err != nil {
			return nil, err
		}
		k.Debs = append(k.Debs, deb)
	}
	k.Package = strings.TrimSuffix(k.Debs[0], ".deb")
	b, err := json.MarshalIndent(k, "", "\t")
	if err != nil {
		return nil, err
	}
	dropOldDebs(dir, k.Debs)
	return k, atomicfile.WriteFile(record, b, 0o644)
}

func recordedKernel(record, dir string) (*kernelPackage, error) {
	b, err := os.ReadFile(record)
	if err != nil {
		return nil, err
	}
	k := &kernelPackage{dir: dir}
	if err := json.Unmarshal(b, k); err != nil {
		return nil, err
	}
	if len(k.Debs) == 0 {
		return nil, errors.New("no package recorded")
	}
	for _, d := range k.Debs {
		if _, err := os.Stat(filepath.Join(dir, d)); err != nil {
			return nil, err
		}
	}
	return k, nil
}

// Meta-packages and the packages they depend on that hold a kernel or its modules. Never a fixed
// version: mirrors keep only the current one.
var metaPackages = []struct {
	name    string
	depends *regexp.Regexp
}{
	{"linux-image-amd64", regexp.MustCompile(`^linux-image-[0-9].*-amd64$`)},                             // Debian
	{"linux-image-generic", regexp.MustCompile(`^linux-(image|modules|modules-extra)-[0-9].*-generic$`)}, // Ubuntu
}

func kernelPackageNames(ctx context.Context) ([]string, error) {
	if p := os.Getenv("IBCONDUIT_VM_KERNEL_PACKAGE"); p != "" {
		return strings.Fields(p), nil
	}
	if _, err := exec.LookPath("apt-cache"); err != nil {
		return nil, errors.New("softroce: the VM takes its kernel from apt (Debian, Ubuntu), and apt-cache is not here; on this system use hack/softroce/setup.sh, which needs rdma_rxe in the running kernel")
	}
	for _, refresh := range []bool{false, true} {
		if refresh {
			if err := aptUpdate(ctx); err != nil {
				return nil, err
			}
		}
		for _, m := range metaPackages {
			names := dependencies(ctx, m.name, m.depends)
			// Ubuntu's image depends on its modules; the extra ones, with rdma_rxe, come from the
			// meta-package.
			if len(names) > 0 && strings.HasSuffix(m.name, "generic") {
				names = append(names, dependencies(ctx, names[0], m.depends)...)
			}
			if len(names) > 0 {
				return names, nil
			}
		}
	}
	return nil, errors.New("softroce: apt knows neither linux-image-amd64 nor linux-image-generic; check /etc/apt/sources.list*, or name the package of a kernel with rdma_rxe in IBCONDUIT_VM_KERNEL_PACKAGE")
}

func dependencies(ctx context.Context, name string, want *regexp.Regexp) (names []string) {
	out, err := exec.CommandContext(ctx, "apt-cache", "depends", name).Output()
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(out)) {
		kind, dep, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if strings.TrimPrefix(kind, "|") == "Depends" && want.MatchString(dep) {
			names = append(names, dep)
		}
	}
	return names
}

// aptUpdate fetches package lists; they are empty on a fresh container.
func aptUpdate(ctx context.Context) error {
	argv := asRoot(os.Geteuid(), "apt-get", "update", "-qq")
	if out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("softroce: apt has no kernel in its lists, and refreshing them failed: %w; run as root: apt-get update\n%s", err, tail(out, 10))
	}
	return nil
}

// asRoot is argv for this user. sudo clears the environment, of which apt-get needs the way out
// where there is a proxy.
func asRoot(euid int, argv ...string) []string {
	if euid == 0 {
		return argv
	}
	sudo := []string{"sudo", "-n"}
	for _, v := range []string{"http_proxy", "https_proxy", "ftp_proxy", "no_proxy"} {
		if value := os.Getenv(v); value != "" {
			sudo = append(sudo, v+"="+value)
		}
	}
	return append(sudo, argv...)
}

// download fetches one package into dir and returns its file name.
func download(ctx context.Context, dir, name string) (string, error) {
	tmp, err := os.MkdirTemp(dir, ".get-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	get := func() ([]byte, error) {
		cmd := exec.CommandContext(ctx, "apt-get", "-qq", "-o", "APT::Sandbox::User=", "download", name)
		cmd.Dir = tmp
		return cmd.CombinedOutput()
	}
	out, err := get()
	if err != nil { // lists older than the mirror name files that are gone
		if err := aptUpdate(ctx); err != nil {
			return "", err
		}
		out, err = get()
	}
	if err != nil {
		return "", fmt.Errorf("softroce: apt-get download %s: %w\n%s", name, err, tail(out, 10))
	}
	files, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(files) != 1 {
		return "", fmt.Errorf("softroce: apt-get download %s left %d files", name, len(files))
	}
	base := filepath.Base(files[0])
	return base, os.Rename(files[0], filepath.Join(dir, base))
}

func dropOldDebs(dir string, keep []string) {
	files, _ := filepath.Glob(filepath.Join(dir, "*.deb"))
	for _, f := range files {
		if !strings.Contains(strings.Join(keep, "\n"), filepath.Base(f)) {
			_ = os.Remove(f)
		}
	}
}

func (k *kernelPackage) unpack(ctx context.Context, parent string) (*kernelTree, error) {
	t := &kernelTree{root: filepath.Join(parent, "kroot")}
	for _, d := range k.Debs {
		cmd := exec.CommandContext(ctx, "dpkg", "-x", filepath.Join(k.dir, d), t.root)
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("softroce: dpkg -x %s: %w\n%s", d, err, tail(out, 5))
		}
	}
	kernels, _ := filepath.Glob(filepath.Join(t.root, "boot", "vmlinuz-*"))
	if len(kernels) != 1 {
		return nil, fmt.Errorf("softroce: %d kernels in %s", len(kernels), strings.Join(k.Debs, " "))
	}
	t.kernel = kernels[0]
	t.release = strings.TrimPrefix(filepath.Base(t.kernel), "vmlinuz-")
	for _, lib := range []string{"lib", "usr/lib"} {
		d := filepath.Join(t.root, lib, "modules", t.release)
		if _, err := os.Stat(filepath.Join(d, "kernel")); err == nil {
			t.modules = d
		}
	}
	if t.modules == "" {
		return nil, fmt.Errorf("softroce: no modules for %s in %s", t.release, strings.Join(k.Debs, " "))
	}
	return t, nil
}

// writeKernel writes the ELF image inside a bzImage, which boots by PVH: unpacking it here once
// spares every boot two seconds of emulated decompression. Where that fails, the bzImage itself is
// taken.
func writeKernel(ctx context.Context, bzImage, dst string) error {
	b, err := os.ReadFile(bzImage)
	if err != nil {
		return err
	}
	if elf := extractELF(ctx, b); elf != nil {
		return os.WriteFile(dst, elf, 0o644)
	}
	return os.WriteFile(dst, b, 0o644)
}

// extractELF finds the payload by its magic number, as the kernel's scripts/extract-vmlinux does.
func extractELF(ctx context.Context, bzImage []byte) []byte {
	for _, c := range compressions {
		rest := bzImage
		for try := 0; try < 4; try++ {
			i := bytes.Index(rest, c.magic)
			if i < 0 {
				break
			}
			// What follows the payload makes the tools complain after they have written all of it.
			cmd := exec.CommandContext(ctx, c.argv[0], c.argv[1:]...)
			cmd.Stdin = bytes.NewReader(rest[i:])
			out, _ := cmd.Output()
			if bytes.HasPrefix(out, []byte("\x7fELF")) && hasPVHNote(out) {
				return out
			}
			rest = rest[i+1:]
		}
	}
	return nil
}

var compressions = []struct {
	suffix string
	magic  []byte
	argv   []string
}{
	{".xz", []byte("\xfd7zXZ\x00"), []string{"xz", "-dc", "--single-stream"}},
	{".zst", []byte("\x28\xb5\x2f\xfd"), []string{"zstd", "-dcq"}},
	{".gz", []byte("\x1f\x8b\x08"), []string{"gzip", "-dc"}},
}

func tail(b []byte, lines int) string {
	l := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(l[max(0, len(l)-lines):], "\n")
}
