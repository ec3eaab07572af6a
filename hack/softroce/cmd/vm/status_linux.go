package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/ibconduit/conduit/hack/softroce/internal/image"
	"github.com/ibconduit/conduit/hack/softroce/internal/qemu"
)

// runSetup installs what is missing of the system, then prepares the image.
func runSetup(ctx context.Context, _ *options, args []string) int {
	if len(args) > 0 {
		return fail(exitUsage, fmt.Errorf("setup takes no arguments"))
	}
	root, err := image.Root()
	if err != nil {
		return fail(exitInfrastructure, err)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(root, "hack", "softroce", "packages.sh"), "install")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fail(exitInfrastructure, fmt.Errorf("packages.sh install: %w", err))
	}
	return prepare(ctx, false, os.Stderr)
}

func prepare(ctx context.Context, update bool, log io.Writer) int {
	dir, err := image.Dir()
	if err != nil {
		return fail(exitInfrastructure, err)
	}
	if _, err := image.Prepare(ctx, image.Options{Dir: dir, Log: log, Update: update}); err != nil {
		return fail(exitInfrastructure, err)
	}
	return 0
}

func runPrepare(ctx context.Context, _ *options, args []string) int {
	fs := flag.NewFlagSet("prepare", flag.ContinueOnError)
	update := fs.Bool("update", false, "look for a newer kernel")
	if err := fs.Parse(args); err != nil {
		return exitUsage
	}
	return prepare(ctx, *update, os.Stderr)
}

// runStatus says what is there; exit code 0 when a VM could be started without installing anything.
func runStatus(ctx context.Context, _ *options, _ []string) int {
	dir, err := image.Dir()
	if err != nil {
		return fail(exitInfrastructure, err)
	}
	code := 0
	if path, err := exec.LookPath(qemu.Program); err == nil {
		fmt.Println("emulator  ", path)
	} else {
		fmt.Println("emulator   missing: hack/softroce/packages.sh install")
		code = 1
	}
	images, _ := filepath.Glob(filepath.Join(dir, "image", "*", "image.json"))
	for _, file := range images {
		if b, err := os.ReadFile(file); err == nil {
			fmt.Println("image     ", filepath.Dir(file), strings.Join(strings.Fields(string(b)), " "))
		}
	}
	if len(images) == 0 {
		fmt.Println("image      none yet: vm prepare downloads 70 MB")
	}
	switch b, err := os.ReadFile(filepath.Join(dir, "accel.json")); {
	case err == nil && strings.Contains(string(b), `"kvm"`):
		fmt.Println("accel      kvm: it was probed and boots")
	case err == nil:
		fmt.Println("accel      tcg: /dev/kvm is there, but a guest does not boot with it")
	default:
		fmt.Println("accel      not probed; tcg unless /dev/kvm can be opened and boots a guest")
	}
	logs, _ := filepath.Glob(filepath.Join(dir, "log", "*"))
	fmt.Printf("logs       %d runs in %s\n", len(logs), filepath.Join(dir, "log"))
	fmt.Printf("disk       %d MB in %s\n", diskUse(dir)>>20, dir)
	return code
}

func diskUse(dir string) (total int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		if info, err := d.Info(); err == nil {
			total += info.Size()
		}
		return nil
	})
	return total
}

// runClean removes what vm made; not while a VM runs, whose image and logs these are.
func runClean(ctx context.Context, _ *options, _ []string) int {
	dir, err := image.Dir()
	if err != nil {
		return fail(exitInfrastructure, err)
	}
	unlock, err := image.Lock(ctx, filepath.Join(dir, "slot.0"))
	if err != nil {
		return fail(exitInfrastructure, err)
	}
	defer unlock()
	for _, name := range []string{"image", "deb", "log", "bin", "accel.json"} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return fail(exitInfrastructure, err)
		}
	}
	return 0
}
