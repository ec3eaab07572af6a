package bootstrap

import (
	"errors"
	"flag"
	"fmt"
	"os"
)

// ErrAlone is the cause when a process that was started as one of several would become a job of one
// rank: the environment names the others, but leads to none of them.
var ErrAlone = errors.New("this would be a job of one rank, and not of several")

// alone returns an error where the environment that led to no launcher is not a single
// process's. Names that sites export to every login, as OMPI_MCA_* and SLURM_CONF, say nothing.
func alone(env environment, program string) error {
	says := func(remedy string, names ...string) error {
		set := ""
		for _, n := range names {
			if env.has(n) {
				set += n + "=" + env.get(n) + " "
			}
		}
		return fmt.Errorf("%sis set, and nothing leads to the other ranks: %w; %s; IBCONDUIT_BOOTSTRAP=self makes every "+
			"process a job of its own", set, ErrAlone, remedy)
	}
	many := func(name string) bool {
		n, err := env.number(name)
		return err == nil && n > 1
	}
	srun := "start it with: srun -K1 --mpi=pmi2 " + program
	switch {
	case inStep(env) && !env.has("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"):
		return says(srun, "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
	case !inStep(env) && (many("SLURM_NTASKS") || many("SLURM_JOB_NUM_NODES")):
		return says("this is the batch script or salloc's shell: "+srun, "SLURM_NTASKS", "SLURM_JOB_NUM_NODES")
	case env.any("PMIX_RANK", "PMIX_NAMESPACE"):
		return says("PMIX_RANK and PMIX_NAMESPACE are both needed: keep what srun --mpi=pmix or mpirun sets",
			"PMIX_RANK", "PMIX_NAMESPACE")
	case many("PMI_SIZE"), env.any("PMI_RANK", "PMI_ID") && !env.has("PMI_SIZE"):
		return says("neither PMI_FD nor PMI_PORT with PMI_ID leads to the launcher: "+
			"start it with mpiexec.hydra -n N "+program+
			" or srun --mpi=pmi2; IBCONDUIT_BOOTSTRAP=tcp with IBCONDUIT_ADDR meets over TCP", "PMI_RANK", "PMI_SIZE", "PMI_ID")
	case many("OMPI_COMM_WORLD_SIZE"), env.has("OMPI_COMM_WORLD_RANK") && !env.has("OMPI_COMM_WORLD_SIZE"):
		return says("OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE are both needed: start it with mpirun -n N "+program,
			"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
	case env.has("JOB_COMPLETION_INDEX"):
		return says("set in the Job's template: IBCONDUIT_SIZE to its completions, IBCONDUIT_ADDR to host:port of "+
			"completion 0, and IBCONDUIT_SECRET_FILE", "JOB_COMPLETION_INDEX")
	}
	return nil
}

// ownProgram is how this process was called.
func ownProgram() string {
	if len(os.Args) == 0 || os.Args[0] == "" {
		return "./prog"
	}
	return os.Args[0]
}

// goTest says whether this process is a binary of go test, which is not started as ranks by
// mistake: tests run in the shell of an allocation as anywhere else.
func goTest() bool { return flag.Lookup("test.v") != nil }
