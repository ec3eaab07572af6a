package launchertest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/proctest"
)

// mpirun returns the command of Open MPI's launcher. Without it the test is skipped, or fails where
// make test has installed it.
func mpirun(t *testing.T, args ...string) []string {
	t.Helper()
	path, err := exec.LookPath("mpirun.openmpi")
	if err != nil {
		if os.Getenv("IBCONDUIT_REQUIRE_OPENMPI") == "1" {
			t.Fatalf("IBCONDUIT_REQUIRE_OPENMPI=1, but %v (package openmpi-bin)", err)
		}
		t.Skipf("%v (package openmpi-bin); IBCONDUIT_REQUIRE_OPENMPI=1 makes this an error", err)
	}
	return append([]string{path, "--allow-run-as-root", "--oversubscribe", "--mca", "oob_tcp_if_include", "lo"}, args...)
}

func TestMpirunStartsAJobByPMIx(t *testing.T) {
	for _, n := range []int{1, 2, 4} {
		r := run(t, nil, mpirun(t, "-n", strconv.Itoa(n), "-x", roleVar+"=exchange", self(t))...)
		for rank := range n {
			r.want(t, 0, "rank "+strconv.Itoa(rank)+": of "+strconv.Itoa(n)+" by pmix (PMIX_RANK), "+strconv.Itoa(n)+" here")
		}
	}
	r := run(t, nil, mpirun(t, "-n", "3", helloProgram(t))...)
	r.want(t, 0, greeting(0, 3), greeting(1, 3), greeting(2, 3))
}

// The only rank of a job meets nobody, and any number of programs may be it.
func TestMpirunAndRanksOfSeveralPrograms(t *testing.T) {
	r := run(t, nil, mpirun(t, "-n", "1", "-x", roleVar+"=exchange", "bash", "-c", `"$0" && "$0" & "$0" && wait $!`, self(t))...)
	r.want(t, 0)
	if n := strings.Count(r.out, "of 1 by pmix (PMIX_RANK), 1 here"); n != 3 {
		t.Errorf("%d programs joined, want 3", n)
	}
	for how, code := range map[string]int{"3": 3, "kill": 137, "abort": 7, "0": 0} {
		run(t, nil, mpirun(t, "-n", "1", "-x", roleVar+"=barrier:0:"+how, self(t))...).want(t, code)
	}
}

// Of another rank the second program succeeds or not, by chance: one that does not is told.
func TestASecondProgramUnderPMIxIsTold(t *testing.T) {
	lib := filepath.Join(t.TempDir(), "libpmix.so.2")
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-w", "-DREFUSES", "-o", lib, "../../internal/pmix/testdata/fake.c").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	r := run(t, []string{"PMIX_RANK=0", "PMIX_NAMESPACE=fake.1", "IBCONDUIT_LIBPMIX=" + lib, roleVar + "=exchange"}, self(t))
	r.want(t, exitError, "PMIx_Fence: OTHER (-33)", "another program of this rank has joined the job already")
}

// mpirun ends the job of a rank that ends badly; what it does not end fails by itself.
func TestMpirunAndRanksThatEndBadly(t *testing.T) {
	for how, code := range map[string]int{"3": 3, "kill": 137, "abort": 7, "0": 1} {
		t.Run(how, func(t *testing.T) {
			r := run(t, nil, mpirun(t, "-n", "3", "-x", roleVar+"=barrier:1:"+how, self(t))...)
			r.want(t, code)
			if how == "abort" {
				r.want(t, code, "rank 1: abort with code 7: told to")
			}
			if r.took > 20*time.Second {
				t.Errorf("it took %v", r.took)
			}
		})
	}
	// Where the user has it not end the job, the others' barrier fails.
	r := run(t, nil, mpirun(t, "--mca", "orte_abort_on_non_zero_status", "0", "--enable-recovery", "-n", "3", "-x", roleVar+"=barrier:1:kill", self(t))...)
	r.want(t, 0, "rank 0: bootstrap: a rank has ended, see the launcher's message: PMIx_Fence", "rank 2: bootstrap: a rank has ended")
}

func TestMpirunWithoutALibraryOfPMIx(t *testing.T) {
	none := []string{"-x", "IBCONDUIT_LIBPMIX=/nowhere/libpmix.so", "-x", roleVar + "=exchange"}
	r := run(t, nil, mpirun(t, append(none, "-n", "2", self(t))...)...)
	r.want(t, exitJoin, "no usable libpmix: /nowhere/libpmix.so: cannot open shared object file", "IBCONDUIT_LIBPMIX names it", "set IBCONDUIT_ADDR=host:port")

	r = run(t, nil, mpirun(t, append(none, "-n", "2", "-x", "IBCONDUIT_ADDR="+proctest.HeldAddr(t), self(t))...)...)
	r.want(t, 0, "rank 0: of 2 by tcp (OMPI_COMM_WORLD_RANK), 2 here", "rank 1: of 2 by tcp (OMPI_COMM_WORLD_RANK), 2 here")
}

// Variables that a site exports to every login are no launcher; those of a job that lead to no
// other rank are an error, whether or not there is a log.
func TestAJobOfOneByMistakeIsRefused(t *testing.T) {
	run(t, []string{"OMPI_MCA_btl=self,vader", "SLURM_CONF=/etc/slurm/slurm.conf"}, helloProgram(t)).want(t, 0, greeting(0, 1))
	for _, mistake := range [][]string{{"OMPI_COMM_WORLD_SIZE=2"}, {"SLURM_JOB_ID=5", "SLURM_NTASKS=4"}, {"JOB_COMPLETION_INDEX=1"}, {"PMI_SIZE=2"}} {
		r := run(t, mistake, helloProgram(t))
		r.want(t, 1, mistake[len(mistake)-1], "this would be a job of one rank", "IBCONDUIT_BOOTSTRAP=self")
		run(t, append(mistake, "IBCONDUIT_BOOTSTRAP=self"), helloProgram(t)).want(t, 0, greeting(0, 1))
	}
	// What starts its ranks itself does so in the shell of an allocation too.
	shell := []string{"SLURM_JOB_ID=5", "SLURM_NTASKS=4"}
	run(t, shell, program(t, "ibbench"), "lat", "put", "--fabric", "shm", "--size", "8", "--iters", "20").want(t, 0, "lat put, fabric shm")
	r := run(t, shell, program(t, "ibbench"), "doctor")
	r.want(t, r.code, "warn  launcher", "start it with: srun")
}
