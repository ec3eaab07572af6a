package bootstrap

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ibconduit/conduit/internal/pmix"
)

func TestDetection(t *testing.T) {
	slurmStep := []string{"SLURM_JOB_ID", "4", "SLURM_STEP_ID", "0", "SLURM_PROCID", "1", "SLURM_STEP_NUM_TASKS", "4", "SLURM_NTASKS", "4"}
	pmixed := []string{"PMIX_RANK", "1", "PMIX_NAMESPACE", "1600323585"}
	ompi := append(pmixed, "OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "4")
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
		lone bool // the error is ErrAlone
		pmix bool // there is a libpmix
	}{
		{what: "nothing", want: "self"},
		{what: "own variables", env: own, want: "tcp (IBCONDUIT_RANK) 3/5@h:1 j"},
		{what: "own launcher", env: with(own, []string{"IBCONDUIT_SECRET_FD", "4"}), want: "launch (IBCONDUIT_RANK) 3/5@h:1 j"},
		{what: "own before all others", env: with(pmi, pmixed, torch, slurmStep, own), want: "tcp (IBCONDUIT_RANK) 3/5@h:1 j"},
		{what: "rank without size", env: []string{"IBCONDUIT_RANK", "1"}, err: "IBCONDUIT_RANK is set without IBCONDUIT_SIZE"},
		{what: "size without rank", env: []string{"IBCONDUIT_SIZE", "4"}, err: "nothing says which rank this is"},
		{what: "address without rank", env: addr, err: "nothing says which rank this is"},
		{what: "rank outside", env: with(addr, []string{"IBCONDUIT_RANK", "4", "IBCONDUIT_SIZE", "4"}), err: "ranks go from 0 to size-1"},
		{what: "rank is no number", env: with(addr, []string{"IBCONDUIT_RANK", "-1", "IBCONDUIT_SIZE", "4"}), err: `IBCONDUIT_RANK="-1" is not a number`},
		{what: "no address", env: []string{"IBCONDUIT_RANK", "1", "IBCONDUIT_SIZE", "4"}, err: "set IBCONDUIT_ADDR=host:port"},
		{what: "an address without a port", env: []string{"IBCONDUIT_RANK", "1", "IBCONDUIT_SIZE", "4", "IBCONDUIT_ADDR", "n0"}, err: `IBCONDUIT_ADDR="n0": want host:port`},
		{what: "a port that there is not", env: []string{"IBCONDUIT_RANK", "1", "IBCONDUIT_SIZE", "4", "IBCONDUIT_ADDR", "n0:99999"}, err: "a port from 1 to 65535"},
		{what: "a port that is no number", env: []string{"IBCONDUIT_RANK", "1", "IBCONDUIT_SIZE", "4", "IBCONDUIT_ADDR", "n0:rdma"}, err: "a port from 1 to 65535"},
		{what: "more ranks than can meet", env: with(addr, []string{"IBCONDUIT_RANK", "0", "IBCONDUIT_SIZE", "2147483647"}), err: "IBCONDUIT_SIZE=2147483647: at most 1048576 ranks"},
		{what: "more ranks than a number holds", env: with(addr, []string{"IBCONDUIT_RANK", "0", "IBCONDUIT_SIZE", "99999999999"}), err: "is not a number from 0 to 2147483647"},
		{what: "an address without a host", env: []string{"IBCONDUIT_RANK", "1", "IBCONDUIT_SIZE", "4", "IBCONDUIT_ADDR", ":7777"}, err: `IBCONDUIT_ADDR=":7777": want host:port`},

		{what: "Hydra", env: pmi, want: "pmi1 (PMI_FD)"},
		{what: "Hydra by port", env: []string{"PMI_PORT", "vm:35613", "PMI_ID", "0"}, want: "pmi1 (PMI_PORT)"},
		{what: "Hydra in an allocation, where Slurm describes the proxy",
			env: with(pmi, []string{"SLURM_JOB_ID", "4", "SLURM_STEP_ID", "0", "SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "1"}), want: "pmi1 (PMI_FD)"},
		{what: "Hydra's only rank", env: []string{"PMI_FD", "600", "PMI_RANK", "0", "PMI_SIZE", "1"}, want: "self (PMI_SIZE)"},
		{what: "override: pmi1 of Hydra's only rank", env: []string{"PMI_FD", "600", "PMI_RANK", "0", "PMI_SIZE", "1", "IBCONDUIT_BOOTSTRAP", "pmi1"}, want: "pmi1 (PMI_FD)"},
		{what: "half of PMI", env: []string{"PMI_FD", "600", "PMI_RANK", "1"}, err: "PMI_FD is set without PMI_RANK and PMI_SIZE"},
		{what: "port without id", env: []string{"PMI_PORT", "vm:35613"}, err: "PMI_PORT is set without PMI_ID"},
		{what: "PMI without its connection", env: []string{"PMI_RANK", "1", "PMI_SIZE", "4"}, err: "neither PMI_FD nor PMI_PORT", lone: true},
		{what: "PMI of one without connection", env: []string{"PMI_RANK", "0", "PMI_SIZE", "1"}, want: "self"},
		{what: "PMI's rank without a size", env: []string{"PMI_RANK", "0"}, err: "neither PMI_FD nor PMI_PORT", lone: true},
		{what: "PMI's id without a port", env: []string{"PMI_ID", "0"}, err: "PMI_ID=0 is set", lone: true},

		{what: "PMIx", env: pmixed, pmix: true, want: "pmix (PMIX_RANK)"},
		{what: "PMIx before TCP", env: with(ompi, addr), pmix: true, want: "pmix (PMIX_RANK)"},
		{what: "srun --mpi=pmix", env: with(slurmStep, pmixed), pmix: true, want: "pmix (PMIX_RANK)"},
		{what: "torchrun in a step with PMIx, which is torchrun's", env: with(torch, pmixed), pmix: true, want: "tcp (RANK) 2/4@n1:29501 t7"},
		{what: "PMIx without a library is no singleton", env: pmixed, err: "PMIX_RANK=1): no usable libpmix: not here; or use srun --mpi=pmi2"},
		{what: "Open MPI without library and address", env: ompi, err: "no usable libpmix"},
		{what: "srun --mpi=pmix without a library", env: with(slurmStep, pmixed, addr), want: "tcp (SLURM_PROCID) 1/4@n0:7777 4.0"},
		{what: "Open MPI with an address", env: with(ompi, addr), want: "tcp (OMPI_COMM_WORLD_RANK) 1/4@n0:7777 1600323585"},
		{what: "half of PMIx", env: []string{"PMIX_RANK", "1"}, err: "PMIX_RANK=1 is set", lone: true},
		{what: "the size of Open MPI without a rank", env: []string{"OMPI_COMM_WORLD_SIZE", "4"}, err: "mpirun -n N", lone: true},
		{what: "one process of Open MPI", env: []string{"OMPI_COMM_WORLD_SIZE", "1"}, want: "self"},
		{what: "what sites export", env: []string{"OMPI_MCA_btl", "self,vader", "SLURM_CONF", "/etc/slurm.conf", "PMIX_MCA_gds", "hash", "PMI_MMAP_SYNC_WAIT_TIME", "300"}, want: "self"},

		{what: "torchrun", env: torch, want: "tcp (RANK) 2/4@n1:29501 t7"},
		{what: "torchrun inside srun", env: with(torch, slurmStep), want: "tcp (RANK) 2/4@n1:29501 t7"},
		{what: "torchrun, address overridden", env: with(torch, addr), want: "tcp (RANK) 2/4@n0:7777 t7"},
		{what: "IPv6", env: []string{"RANK", "0", "WORLD_SIZE", "2", "MASTER_ADDR", "fd00::1", "MASTER_PORT", "1"}, want: "tcp (RANK) 0/2@[fd00::1]:2 "},
		{what: "RANK alone", env: []string{"RANK", "2"}, err: "only one of RANK and WORLD_SIZE is set; IBCONDUIT_BOOTSTRAP=self makes"},
		{what: "WORLD_SIZE alone", env: []string{"WORLD_SIZE", "2"}, err: "only one of RANK and WORLD_SIZE is set; IBCONDUIT_BOOTSTRAP=self makes"},
		{what: "no MASTER_ADDR", env: []string{"RANK", "1", "WORLD_SIZE", "2"}, err: "without MASTER_ADDR and MASTER_PORT; IBCONDUIT_BOOTSTRAP=self makes"},
		{what: "no port after the last", env: []string{"RANK", "1", "WORLD_SIZE", "2", "MASTER_ADDR", "n1", "MASTER_PORT", "65535"}, err: "MASTER_PORT"},

		{what: "Indexed Job", env: with(addr, []string{"JOB_COMPLETION_INDEX", "2", "IBCONDUIT_SIZE", "4"}), want: "tcp (JOB_COMPLETION_INDEX) 2/4@n0:7777 "},
		{what: "Indexed Job without address", env: []string{"JOB_COMPLETION_INDEX", "2", "IBCONDUIT_SIZE", "4"}, err: "set IBCONDUIT_ADDR"},
		{what: "Indexed Job that does not tell its size", env: []string{"JOB_COMPLETION_INDEX", "0"}, err: "IBCONDUIT_SIZE to its completions", lone: true},
		{what: "Indexed Job of one", env: []string{"JOB_COMPLETION_INDEX", "0", "IBCONDUIT_SIZE", "1"}, want: "tcp (JOB_COMPLETION_INDEX) 0/1@ "},

		{what: "srun with an address", env: with(slurmStep, addr), want: "tcp (SLURM_PROCID) 1/4@n0:7777 4.0"},
		{what: "srun by itself", env: with(slurmStep, []string{"SLURM_STEP_NODELIST", "n[02-03]"}), want: "tcp (SLURM_PROCID) 1/4@n02:21004 4.0"},
		{what: "srun by itself, with a reserved port", env: with(slurmStep, []string{"SLURM_STEP_NODELIST", "n2", "SLURM_STEP_RESV_PORTS", "12001-12004"}), want: "tcp (SLURM_PROCID) 1/4@n2:12001 4.0"},
		{what: "srun without a list of nodes", env: slurmStep, err: "it names no host; set IBCONDUIT_ADDR"},
		{what: "srun with ports that are none", env: with(slurmStep, []string{"SLURM_STEP_NODELIST", "n2", "SLURM_STEP_RESV_PORTS", "many"}), err: `SLURM_STEP_RESV_PORTS="many"`},
		{what: "srun of one task", env: []string{"SLURM_JOB_ID", "4", "SLURM_STEP_ID", "0", "SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "1"}, want: "tcp (SLURM_PROCID) 0/1@ 4.0"},
		{what: "batch script: does not believe SLURM_NTASKS", env: []string{"SLURM_JOB_ID", "4", "SLURM_PROCID", "0", "SLURM_NTASKS", "4"},
			err: "SLURM_NTASKS=4 is set, and nothing leads to the other ranks", lone: true},
		{what: "batch script of one task", env: []string{"SLURM_JOB_ID", "4", "SLURM_PROCID", "0", "SLURM_NTASKS", "1", "SLURM_JOB_NUM_NODES", "1"}, want: "self"},
		{what: "salloc of two nodes", env: []string{"SLURM_JOB_ID", "4", "SLURM_JOB_NUM_NODES", "2"}, err: "srun -K1 --mpi=pmi2 ", lone: true},
		{what: "shell of an interactive salloc", env: []string{"SLURM_JOB_ID", "4", "SLURM_STEP_ID", "4294967290", "SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "1", "SLURM_NTASKS", "4"},
			err: "salloc's shell", lone: true},
		{what: "step that does not tell its size", env: []string{"SLURM_JOB_ID", "4", "SLURM_STEP_ID", "0", "SLURM_PROCID", "0"}, err: "SLURM_STEP_ID=0 SLURM_PROCID=0 is set", lone: true},
		{what: "batch script, override", env: []string{"SLURM_NTASKS", "4", "IBCONDUIT_BOOTSTRAP", "self"}, want: "self (IBCONDUIT_BOOTSTRAP)"},

		{what: "override: self", env: with(pmi, []string{"IBCONDUIT_BOOTSTRAP", "self"}), want: "self (IBCONDUIT_BOOTSTRAP)"},
		{what: "override: tcp under Hydra", env: with(pmi, addr, []string{"IBCONDUIT_BOOTSTRAP", "tcp"}), want: "tcp (PMI_RANK) 1/4@n0:7777 "},
		{what: "override: tcp without anything", env: []string{"IBCONDUIT_BOOTSTRAP", "tcp"}, err: "the variables that it needs are not set"},
		{what: "override: slurm under Hydra", env: with(pmi, slurmStep, addr, []string{"IBCONDUIT_BOOTSTRAP", "slurm"}), want: "tcp (SLURM_PROCID) 1/4@n0:7777 4.0"},
		{what: "override: pmi1 in a torch job", env: with(pmi, torch, []string{"IBCONDUIT_BOOTSTRAP", "pmi1"}), want: "pmi1 (PMI_FD)"},
		{what: "override: pmix", env: with(pmixed, addr, []string{"IBCONDUIT_BOOTSTRAP", "pmix"}), err: "no usable libpmix"},
		{what: "INSECURE that is no switch", env: []string{"IBCONDUIT_INSECURE", "yes"}, err: `IBCONDUIT_INSECURE="yes": want 0 or 1`},
		{what: "override: unknown", env: []string{"IBCONDUIT_BOOTSTRAP", "mpi"}, err: "want self, launch, tcp, pmi1, pmix or slurm"},
	} {
		t.Run(c.what, func(t *testing.T) {
			defer func(f func(string) (string, error)) { loadPMIx = f }(loadPMIx)
			loadPMIx = func(string) (string, error) { return "4.2.2", nil }
			if !c.pmix {
				loadPMIx = func(string) (string, error) { return "", fmt.Errorf("%w: not here", pmix.ErrNoLibrary) }
			}
			d, err := detect(env(c.env...), "./prog")
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || errors.Is(err, ErrAlone) != c.lone {
					t.Fatalf("%+v, %v; want error %q, alone %v", d, err, c.err, c.lone)
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
		})
	}
}

func TestShortSecretIsRefused(t *testing.T) {
	if _, err := readSecret(env("IBCONDUIT_SECRET", "password")); err == nil || !strings.Contains(err.Error(), "openssl rand -hex 32") {
		t.Errorf("%v", err)
	}
}

// A test of go test that has a job of one rank runs in the shell of an allocation as anywhere else.
func TestGoTestRunsInAnAllocationsShell(t *testing.T) {
	b, err := New(bounded(t), Options{Log: quiet, Lookup: env("SLURM_JOB_ID", "4", "SLURM_NTASKS", "4")})
	if err != nil {
		t.Fatal(err)
	}
	if b.Size() != 1 {
		t.Errorf("%d ranks", b.Size())
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}
