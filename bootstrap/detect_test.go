package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestDetection(t *testing.T) {
	slurmStep := []string{"SLURM_JOB_ID", "4", "SLURM_STEP_ID", "0", "SLURM_PROCID", "1", "SLURM_STEP_NUM_TASKS", "4", "SLURM_NTASKS", "4"}
	pmix := []string{"PMIX_RANK", "1", "PMIX_NAMESPACE", "1600323585"}
	ompi := append(pmix, "OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "4")
	torch := []string{"RANK", "2", "WORLD_SIZE", "4", "MASTER_ADDR", "n1", "MASTER_PORT", "29500", "TORCHELASTIC_RUN_ID", "t7"}
	own := []string{"IBCONDUIT_RANK", "3", "IBCONDUIT_SIZE", "5", "IBCONDUIT_ADDR", "h:1", "IBCONDUIT_JOB", "j"}
	pmi := []string{"PMI_FD", "600", "PMI_RANK", "1", "PMI_SIZE", "4"}
	addr := []string{"IBCONDUIT_ADDR", "n0:7777"}
	with := func(parts ...[]string) []string {
		var all []string
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	for _, c := range []struct {
		what string
		env  []string
		want string // name, for a rendezvous with rank/size@addr job
		err  string
		warn string
	}{
		{what: "nothing", want: "self"},
		{what: "own variables", env: own, want: "tcp (IBCONDUIT_RANK) 3/5@h:1 j"},
		{what: "own launcher", env: with(own, []string{"IBCONDUIT_SECRET_FD", "4"}), want: "launch (IBCONDUIT_RANK) 3/5@h:1 j"},
		{what: "own before all others", env: with(pmi, pmix, torch, slurmStep, own), want: "tcp (IBCONDUIT_RANK) 3/5@h:1 j"},
		{what: "rank without size", env: []string{"IBCONDUIT_RANK", "1"}, err: "IBCONDUIT_RANK is set without IBCONDUIT_SIZE"},
		{what: "size without rank", env: []string{"IBCONDUIT_SIZE", "4"}, err: "nothing says which rank this is"},
		{what: "address without rank", env: addr, err: "nothing says which rank this is"},
		{what: "rank outside", env: with(addr, []string{"IBCONDUIT_RANK", "4", "IBCONDUIT_SIZE", "4"}), err: "ranks go from 0 to size-1"},
		{what: "rank is no number", env: with(addr, []string{"IBCONDUIT_RANK", "-1", "IBCONDUIT_SIZE", "4"}), err: `IBCONDUIT_RANK="-1" is not a number`},
		{what: "no address", env: []string{"IBCONDUIT_RANK", "1", "IBCONDUIT_SIZE", "4"}, err: "set IBCONDUIT_ADDR=host:port"},
		{what: "an address without a port", env: []string{"IBCONDUIT_RANK", "1", "IBCONDUIT_SIZE", "4", "IBCONDUIT_ADDR", "n0"}, err: `IBCONDUIT_ADDR="n0": want host:port`},
		{what: "an address without a host", env: []string{"IBCONDUIT_RANK", "1", "IBCONDUIT_SIZE", "4", "IBCONDUIT_ADDR", ":7777"}, err: `IBCONDUIT_ADDR=":7777": want host:port`},

		{what: "Hydra", env: pmi, want: "pmi1 (PMI_FD)"},
		{what: "Hydra by port", env: []string{"PMI_PORT", "vm:35613", "PMI_ID", "0"}, want: "pmi1 (PMI_PORT)"},
		{what: "Hydra in an allocation, where Slurm describes the proxy",
			env: with(pmi, []string{"SLURM_JOB_ID", "4", "SLURM_STEP_ID", "0", "SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "1"}), want: "pmi1 (PMI_FD)"},
		{what: "half of PMI", env: []string{"PMI_FD", "600", "PMI_RANK", "1"}, err: "PMI_FD is set without PMI_RANK and PMI_SIZE"},
		{what: "port without id", env: []string{"PMI_PORT", "vm:35613"}, err: "PMI_PORT is set without PMI_ID"},
		{what: "PMI without its connection", env: []string{"PMI_RANK", "1", "PMI_SIZE", "4"}, err: "neither PMI_FD nor PMI_PORT"},
		{what: "PMI of one without connection", env: []string{"PMI_RANK", "0", "PMI_SIZE", "1"}, want: "self", warn: "PMI_RANK=0 PMI_SIZE=1"},

		{what: "PMIx is never a silent singleton", env: pmix, err: "PMIx is not built in yet: use srun --mpi=pmi2"},
		{what: "Open MPI without an address", env: ompi, err: "PMIx is not built in yet"},
		{what: "Open MPI with an address", env: with(ompi, addr), want: "tcp (OMPI_COMM_WORLD_RANK) 1/4@n0:7777 1600323585"},
		{what: "half of PMIx", env: []string{"PMIX_RANK", "1"}, want: "self", warn: "PMIX_RANK=1"},

		{what: "torchrun", env: torch, want: "tcp (RANK) 2/4@n1:29501 t7"},
		{what: "torchrun inside srun", env: with(torch, slurmStep), want: "tcp (RANK) 2/4@n1:29501 t7"},
		{what: "torchrun, address overridden", env: with(torch, addr), want: "tcp (RANK) 2/4@n0:7777 t7"},
		{what: "IPv6", env: []string{"RANK", "0", "WORLD_SIZE", "2", "MASTER_ADDR", "fd00::1", "MASTER_PORT", "1"}, want: "tcp (RANK) 0/2@[fd00::1]:2 "},
		{what: "RANK alone", env: []string{"RANK", "2"}, err: "only one of RANK and WORLD_SIZE"},
		{what: "WORLD_SIZE alone", env: []string{"WORLD_SIZE", "2"}, err: "only one of RANK and WORLD_SIZE"},
		{what: "no MASTER_ADDR", env: []string{"RANK", "1", "WORLD_SIZE", "2"}, err: "without MASTER_ADDR and MASTER_PORT"},
		{what: "no port after the last", env: []string{"RANK", "1", "WORLD_SIZE", "2", "MASTER_ADDR", "n1", "MASTER_PORT", "65535"}, err: "MASTER_PORT"},

		{what: "Indexed Job", env: with(addr, []string{"JOB_COMPLETION_INDEX", "2", "IBCONDUIT_SIZE", "4"}), want: "tcp (JOB_COMPLETION_INDEX) 2/4@n0:7777 "},
		{what: "Indexed Job without address", env: []string{"JOB_COMPLETION_INDEX", "2", "IBCONDUIT_SIZE", "4"}, err: "set IBCONDUIT_ADDR"},
		{what: "Indexed Job that is no job of ours", env: []string{"JOB_COMPLETION_INDEX", "2"}, want: "self", warn: "JOB_COMPLETION_INDEX=2"},

		{what: "srun with an address", env: with(slurmStep, addr), want: "tcp (SLURM_PROCID) 1/4@n0:7777 4.0"},
		{what: "srun without PMI", env: slurmStep, err: "use srun --mpi=pmi2"},
		{what: "srun of one task", env: []string{"SLURM_JOB_ID", "4", "SLURM_STEP_ID", "0", "SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "1"}, want: "tcp (SLURM_PROCID) 0/1@ 4.0"},
		{what: "batch script: believes nobody's SLURM_NTASKS", env: []string{"SLURM_JOB_ID", "4", "SLURM_PROCID", "0", "SLURM_NTASKS", "4"},
			want: "self", warn: "start the program with srun"},

		{what: "override: self", env: with(pmi, []string{"IBCONDUIT_BOOTSTRAP", "self"}), want: "self (IBCONDUIT_BOOTSTRAP)"},
		{what: "override: tcp under Hydra", env: with(pmi, addr, []string{"IBCONDUIT_BOOTSTRAP", "tcp"}), want: "tcp (PMI_RANK) 1/4@n0:7777 "},
		{what: "override: tcp without anything", env: []string{"IBCONDUIT_BOOTSTRAP", "tcp"}, err: "the variables that it needs are not set"},
		{what: "override: slurm under Hydra", env: with(pmi, slurmStep, addr, []string{"IBCONDUIT_BOOTSTRAP", "slurm"}), want: "tcp (SLURM_PROCID) 1/4@n0:7777 4.0"},
		{what: "override: pmi1 in a torch job", env: with(pmi, torch, []string{"IBCONDUIT_BOOTSTRAP", "pmi1"}), want: "pmi1 (PMI_FD)"},
		{what: "override: pmix", env: with(pmix, addr, []string{"IBCONDUIT_BOOTSTRAP", "pmix"}), err: "PMIx is not built in yet"},
		{what: "override: unknown", env: []string{"IBCONDUIT_BOOTSTRAP", "mpi"}, err: "want self, launch, tcp, pmi1, pmix or slurm"},
	} {
		t.Run(c.what, func(t *testing.T) {
			d, err := detect(env(c.env...))
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("%+v, %v; want error %q", d, err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := d.name()
			if d.backend == "tcp" || d.backend == "launch" {
				got += fmt.Sprintf(" %d/%d@%s %s", d.rank, d.size, d.addr, d.job)
			}
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			if w := strings.Join(d.warnings, "\n"); !strings.Contains(w, c.warn) || c.warn == "" && w != "" {
				t.Errorf("warnings %q, want %q", w, c.warn)
			}
		})
	}
}

func TestSecretComesFromThePipeBeforeTheFileBeforeTheEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("secret from the file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	vars := []string{"IBCONDUIT_SECRET", "secret from the environment"}
	check := func(want string) {
		t.Helper()
		got, err := readSecret(env(vars...))
		if err != nil || string(got) != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	check("secret from the environment")
	vars = append(vars, "IBCONDUIT_SECRET_FILE", file)
	check("secret from the file")
	fd := pipeWith(t, "secret from the pipe")
	vars = append(vars, "IBCONDUIT_SECRET_FD", strconv.Itoa(fd))
	check("secret from the pipe")
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != unix.EBADF {
		t.Errorf("the pipe is still open for children: %v", err)
	}
}

// pipeWith returns the number of a pipe's reading end, owned by nobody.
func pipeWith(t *testing.T, text string) int {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], 0); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(p[1], []byte(text)); err != nil {
		t.Fatal(err)
	}
	unix.Close(p[1])
	return p[0]
}

func TestShortSecretIsRefused(t *testing.T) {
	if _, err := readSecret(env("IBCONDUIT_SECRET", "password")); err == nil || !strings.Contains(err.Error(), "openssl rand -hex 32") {
		t.Errorf("%v", err)
	}
}

// A number in the environment outlives the file it meant: the tag keeps us
// from reading, and closing, somebody else's file.
func TestDescriptorThatWasUsedAgainIsNotTaken(t *testing.T) {
	first := pipeWith(t, "the launcher's")
	var st unix.Stat_t
	if err := unix.Fstat(first, &st); err != nil {
		t.Fatal(err)
	}
	tag := strconv.Itoa(first) + ":" + strconv.Itoa(int(st.Ino))
	second := pipeWith(t, "somebody else's text")
	if err := unix.Dup2(second, first); err != nil { // the number now means the second pipe
		t.Fatal(err)
	}
	unix.Close(second)
	defer unix.Close(first)
	if s, err := readSecret(env("IBCONDUIT_SECRET_FD", tag)); !errors.Is(err, unix.EBADF) {
		t.Errorf("read %q, %v", s, err)
	}
	b := make([]byte, 15)
	if n, err := unix.Read(first, b); err != nil || string(b[:n]) != "somebody else's" {
		t.Errorf("the other file was touched: %q, %v", b[:n], err)
	}
}

func TestInheritedPMIDescriptorsAreClosedOnExec(t *testing.T) {
	fd := pipeWith(t, "")
	defer unix.Close(fd)
	control := pipeWith(t, "")
	defer unix.Close(control)
	if _, err := detect(env("PMI_FD", strconv.Itoa(fd), "PMI_RANK", "0", "PMI_SIZE", "1", "HYDI_CONTROL_FD", strconv.Itoa(control))); err != nil {
		t.Fatal(err)
	}
	for _, fd := range []int{fd, control} {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor %d: flags %d, %v", fd, flags, err)
		}
	}
}

func TestTwoJobsInOneProcessReadTheirOwnEnvironments(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	rvs := append(tcpRanks(t, 2, nil), tcpRanks(t, 2, nil)...)
	all, errs := make([]Bootstrap, 4), make([]error, 4)
	done := make(chan int)
	for i, rv := range rvs {
		vars := []string{
			"IBCONDUIT_RANK", strconv.Itoa(rv.rank), "IBCONDUIT_SIZE", "2", "IBCONDUIT_ADDR", rv.addr,
			"IBCONDUIT_SECRET", testSecret, "IBCONDUIT_JOB", strconv.Itoa(i / 2),
		}
		if rv.rank == 0 {
			fd, err := unix.Dup(int(rv.listener.Fd()))
			rv.listener.Close()
			if err != nil {
				t.Fatal(err)
			}
			vars = append(vars, "IBCONDUIT_LISTEN_FD", strconv.Itoa(fd))
		}
		go func() {
			all[i], errs[i] = New(ctx, Options{Lookup: env(vars...), Log: quiet})
			done <- i
		}()
	}
	for range all {
		<-done
	}
	defer closeAll(all)
	noErrors(t, errs)
	noErrors(t, onAll(all, func(b Bootstrap) error { return checkExchanges(ctx, b) }))
	if all[0].JobID() != "0" || all[3].JobID() != "1" || all[0].Name() != "launch (IBCONDUIT_RANK)" {
		t.Errorf("%q %q %q", all[0].JobID(), all[3].JobID(), all[0].Name())
	}
}
