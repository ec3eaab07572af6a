package bootstrap

import (
	"errors"
	"fmt"
)

// source is one way to learn rank and size. It returns nil when its
// variables are absent, and an error when they are there but cannot be used;
// a later source may still be usable.
type source struct {
	backend string
	find    func(environment) (*detected, error)
}

// sources in the order in which they are tried. PMI's, PMIx's and Open
// MPI's come before Slurm's own variables: under mpiexec inside an allocation
// the latter describe mpiexec's proxies, not the ranks. Likewise torchrun runs
// inside srun, the PMI or PMIx of which is torchrun's own.
var sources = []source{
	{"launch", fromOwn},
	{"tcp", fromTorchrun},
	{"pmi1", fromPMI},
	{"pmix", fromPMIx},
	{"tcp", ranked("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE")},
	{"tcp", fromGeneric},
	{"tcp", ranked("JOB_COMPLETION_INDEX", "IBCONDUIT_SIZE", "")}, // Kubernetes gives a pod no size
	{"slurm", fromSlurm},
}

// detect decides how this process was launched. It never takes a rank of a
// job for a job of its own: what looks launched but cannot be used is an
// error. program is for the texts of errors.
func detect(lookup environment, program string) (detected, error) {
	want := lookup.get("IBCONDUIT_BOOTSTRAP")
	switch want {
	case "self":
		return detected{backend: "self", by: "IBCONDUIT_BOOTSTRAP"}, nil
	case "", "launch", "tcp", "pmi1", "slurm", "pmix":
	default:
		return detected{}, fmt.Errorf("IBCONDUIT_BOOTSTRAP=%q: want self, launch, tcp, pmi1, pmix or slurm", want)
	}
	ask := sources
	if want == "tcp" {
		ask = append(ask[:len(ask):len(ask)], source{"tcp", ranked("PMI_RANK", "PMI_SIZE", "")})
	}
	if v := lookup.get("IBCONDUIT_INSECURE"); v != "" && v != "0" && v != "1" {
		return detected{}, fmt.Errorf("IBCONDUIT_INSECURE=%q: want 0 or 1", v)
	}
	var unusable error
	for _, s := range ask {
		if want != "" && !s.serves(want) {
			continue
		}
		d, err := s.find(lookup)
		if err != nil && unusable == nil {
			unusable = err
		}
		if d != nil {
			d.env = lookup
			if d.backend == "" {
				d.backend = s.backend
			}
			return *d, nil
		}
	}
	if unusable != nil {
		return detected{}, unusable
	}
	if want != "" {
		return detected{}, fmt.Errorf("IBCONDUIT_BOOTSTRAP=%s, but the variables that it needs are not set; "+
			"see the documentation of package bootstrap", want)
	}
	if err := strayOwn(lookup); err != nil {
		return detected{}, err
	}
	return detected{backend: "self"}, alone(lookup, program)
}

// serves: "tcp" is every source that ends in our own rendezvous.
func (s source) serves(want string) bool {
	return s.backend == want || want == "tcp" && (s.backend == "launch" || s.backend == "slurm")
}

// strayOwn: some of our variables, but no rank.
func strayOwn(env environment) error {
	if env.any("IBCONDUIT_SIZE", "IBCONDUIT_ADDR", "IBCONDUIT_LISTEN_FD", "IBCONDUIT_SECRET_FD") {
		return errors.New("variables of a job are set (IBCONDUIT_SIZE, IBCONDUIT_ADDR or a descriptor), " +
			"but nothing says which rank this is: set IBCONDUIT_RANK and IBCONDUIT_SIZE, or IBCONDUIT_BOOTSTRAP=self")
	}
	return nil
}
