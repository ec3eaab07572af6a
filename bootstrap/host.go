package bootstrap

import (
	"crypto/rand"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"sync"
)

// hostname never fails: it is for messages.
func hostname() string {
	if h, err := os.Hostname(); err == nil && h != "" {
		return h
	}
	return "unknown-host"
}

// whoami names this process for the messages of others.
func thisProcess() string { return fmt.Sprintf("%s pid %d", hostname(), os.Getpid()) }

// hostID is equal for processes under one kernel with one host name: two
// containers of a machine are two hosts, two machines with one name as well.
func hostID() string {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return hostname() + " " + strings.TrimSpace(string(boot))
}

func randomID() string {
	var b [8]byte
	rand.Read(b[:]) // never fails: it ends the program instead
	return hex.EncodeToString(b[:])
}

// buildID identifies the executable: the id that the Go linker wrote into it,
// which is a hash of its contents, or else the known state of its sources.
var buildID = sync.OnceValue(func() string {
	if f, err := elf.Open("/proc/self/exe"); err == nil {
		defer f.Close()
		if s := f.Section(".note.go.buildid"); s != nil {
			if note, err := s.Data(); err == nil && len(note) > 16 {
				sum := sha256.Sum256(note)
				return hex.EncodeToString(sum[:8])
			}
		}
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		sum := sha256.Sum256([]byte(info.String()))
		return hex.EncodeToString(sum[:8])
	}
	return "unknown"
})
