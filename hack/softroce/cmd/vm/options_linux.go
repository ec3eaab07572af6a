package main

import (
	"flag"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/ibconduit/conduit/hack/softroce"
)

// options are the flags before and after the verb.
type options struct {
	flags *flag.FlagSet

	exec    bool
	hosts   int
	cpus    int
	memory  int
	huge    int
	swap    bytesFlag
	memlock bytesFlag
	noRDMA  bool
	stdin   bool
	timeout time.Duration
	accel   string
	dir     string
	env     listFlag
	rw      listFlag
	fetch   listFlag
	chdir   string
	kernel  string
}

const defaultTimeout = 10 * time.Minute

func newOptions() *options {
	o := &options{flags: flag.NewFlagSet("vm", flag.ContinueOnError)}
	f := o.flags
	f.SetOutput(io.Discard) // the error says it
	f.Usage = func() {}
	f.BoolVar(&o.exec, "exec", false, "the first argument is a program, even if it is named like a verb")
	f.IntVar(&o.hosts, "n", 2, "number of VMs (cluster)")
	f.IntVar(&o.cpus, "cpus", 0, "virtual CPUs of each VM (default: 2 for one VM, 1 in a cluster; at most the host's)")
	f.IntVar(&o.memory, "mem", 0, "memory of each VM in `MiB` (default: 2048 for one VM, 1024 in a cluster)")
	f.IntVar(&o.huge, "hugepages", 0, "reserve `N` huge pages of 2 MiB in each VM")
	f.Var(&o.swap, "swap", "swap space on a disk of each VM in `bytes`, K, M or G (default: none)")
	f.Var(&o.memlock, "memlock", "limit of locked memory for the command in `bytes`, K, M or G, with CAP_IPC_LOCK taken away (default: unlimited)")
	f.BoolVar(&o.noRDMA, "no-rdma", false, "a VM without RDMA drivers and device")
	f.BoolVar(&o.stdin, "i", false, "connect standard input (run)")
	f.DurationVar(&o.timeout, "timeout", 0, "kill the VM after this `time` (default: 10m; exec: 30 s after the test's own limit)")
	f.StringVar(&o.accel, "accel", "", "tcg, or kvm (default: IBCONDUIT_VM_ACCEL, else kvm where it proves to boot)")
	f.StringVar(&o.dir, "dir", "", "folder of the control socket (cluster, ctl; default: the run's log folder)")
	f.Var(&o.env, "e", "set `NAME=VALUE` for the command, or pass NAME on; repeatable")
	f.Var(&o.rw, "rw", "host `directory` that the command may write to; repeatable")
	f.Var(&o.fetch, "fetch", "file or directory, `path` in the VM, copied to the same path here at the end; repeatable")
	f.StringVar(&o.chdir, "C", "", "working `directory` of the command (default: this one)")
	f.StringVar(&o.kernel, "append", "", "further kernel `parameters`, but maxcpus (see -cpus)")
	return o
}

// parse reads flags, a verb, more flags of ours, and returns the verb with what follows.
func (o *options) parse(args []string) ([]string, error) {
	rest, err := o.parseOnce(args)
	if err != nil || len(rest) == 0 || o.exec {
		return rest, err
	}
	switch verb := rest[0]; verb {
	case "run", "cluster", "ctl":
		more, err := o.parseOnce(rest[1:])
		return append([]string{verb}, more...), err
	}
	return rest, nil
}

func (o *options) parseOnce(args []string) ([]string, error) {
	if err := o.flags.Parse(args); err != nil {
		return nil, err
	}
	return o.flags.Args(), nil
}

func (o *options) config(hosts int) softroce.Config {
	return softroce.Config{Hosts: hosts, CPUs: o.cpus, MemoryMB: o.memory, NoRDMA: o.noRDMA, HugePages: o.huge, SwapMB: int(o.swap >> 20),
		ReadWrite: o.rw, Append: o.kernel, Accel: o.accel}
}

// listFlag is a flag that may be given several times.
type listFlag []string

func (l *listFlag) String() string     { return strings.Join(*l, " ") }
func (l *listFlag) Set(s string) error { *l = append(*l, s); return nil }

// bytesFlag is a size with an optional binary suffix.
type bytesFlag int64

func (b *bytesFlag) String() string { return strconv.FormatInt(int64(*b), 10) }

func (b *bytesFlag) Set(s string) error {
	if s == "unlimited" {
		*b = 0
		return nil
	}
	shift := 0
	if n := len(s); n > 0 {
		if i := strings.IndexByte("KMG", s[n-1]&^0x20); i >= 0 {
			shift, s = 10*(i+1), s[:n-1]
		}
	}
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v <= 0 || v > math.MaxInt64>>shift {
		return fmt.Errorf("not a positive size in bytes, K, M or G")
	}
	*b = bytesFlag(v << shift)
	return nil
}
