package qemu

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ibconduit/conduit/hack/softroce/internal/wire"
	"github.com/ibconduit/conduit/internal/mux"
)

// probeBound is how long a guest may take under KVM to start the agent. It takes about one second
// where KVM works.
const probeBound = 5 * time.Second

// ChooseAccel returns KVM where the kernel, of the given release, proves to boot in it, TCG
// elsewhere. That /dev/kvm exists proves nothing: under some hypervisors a stock kernel hangs in it
// for ever. The answer is kept in dir until the host restarts.
func ChooseAccel(ctx context.Context, dir, kernel, initrd, release string) string {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return TCG
	}
	f.Close()
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	key := strings.TrimSpace(string(boot)) + " " + release
	file := filepath.Join(dir, "accel.json")
	var known struct{ Key, Accel string }
	if b, err := os.ReadFile(file); err == nil && json.Unmarshal(b, &known) == nil && known.Key == key {
		return known.Accel
	}
	known.Key, known.Accel = key, TCG
	if err := probe(ctx, kernel, initrd); err == nil {
		known.Accel = KVM
	} else if ctx.Err() != nil {
		return TCG // interrupted: nothing learnt
	}
	if b, err := json.Marshal(known); err == nil {
		// Lost, the probe is made again.
		_ = os.WriteFile(file, b, 0o644)
	}
	return known.Accel
}

func probe(ctx context.Context, kernel, initrd string) error {
	tmp, err := os.MkdirTemp("", "softroce-probe-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	m, err := Start(Spec{Kernel: kernel, Initrd: initrd, Accel: KVM, CPUs: 1, MemoryMB: 512, LogDir: tmp, Name: "probe"})
	if err != nil {
		return err
	}
	defer m.Kill()
	stop := context.AfterFunc(ctx, func() { m.Port.Close() })
	defer stop()
	_ = m.Port.SetReadDeadline(time.Now().Add(probeBound))
	f, err := mux.ReadFrame(m.Port)
	if err != nil {
		return err
	}
	if f.Kind != wire.KindHello {
		return fmt.Errorf("frame of kind %d instead of a greeting", f.Kind)
	}
	return nil
}
