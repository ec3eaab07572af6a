package bootstrap

import (
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/ibconduit/conduit/internal/pmix"
)

// detected is how this process joins, and notes for the user.
type detected struct {
	backend  string // "self", "launch", "tcp", "pmi1", "pmix"
	by       string // the variables that decided
	rank     int    // of a rendezvous
	size     int
	addr     string
	addrFrom string // where a port is from that nobody named
	job      string
	munge    bool // where there is no secret
	env      environment
}

func (d detected) name() string {
	if d.by == "" {
		return d.backend
	}
	return d.backend + " (" + d.by + ")"
}

func fromOwn(env environment) (*detected, error) {
	switch {
	case env.has("IBCONDUIT_RANK") && !env.has("IBCONDUIT_SIZE"):
		return nil, errors.New("IBCONDUIT_RANK is set without IBCONDUIT_SIZE")
	case !env.has("IBCONDUIT_RANK"):
		return nil, nil // IBCONDUIT_SIZE only completes an Indexed Job
	}
	d := &detected{by: "IBCONDUIT_RANK", backend: "tcp"}
	if env.any("IBCONDUIT_LISTEN_FD", "IBCONDUIT_SOCKET_FD", "IBCONDUIT_SECRET_FD") {
		d.backend = "launch"
	}
	return d.meet(env, "IBCONDUIT_RANK", "IBCONDUIT_SIZE")
}

// ranked is a launcher that gives rank, size and perhaps the job's id in variables, and leaves the
// rest to us.
func ranked(rankVar, sizeVar, jobVar string) func(environment) (*detected, error) {
	return func(env environment) (*detected, error) {
		if !env.has(rankVar, sizeVar) {
			return nil, nil
		}
		return (&detected{by: rankVar, job: env.get(jobVar)}).meet(env, rankVar, sizeVar)
	}
}

// meet completes a detection that ends in our own rendezvous.
func (d *detected) meet(env environment, rankVar, sizeVar string) (_ *detected, err error) {
	if d.rank, err = env.number(rankVar); err != nil {
		return nil, err
	}
	if d.size, err = env.number(sizeVar); err != nil {
		return nil, err
	}
	if d.size > MaxRanks {
		return nil, fmt.Errorf("%s=%d: at most %d ranks can meet over TCP", sizeVar, d.size, MaxRanks)
	}
	if d.size < 1 || d.rank >= d.size {
		return nil, fmt.Errorf("%s=%d and %s=%d: ranks go from 0 to size-1", rankVar, d.rank, sizeVar, d.size)
	}
	if a := env.get("IBCONDUIT_ADDR"); a != "" {
		host, port, err := net.SplitHostPort(a)
		if n, e := strconv.ParseUint(port, 10, 16); err != nil || host == "" || e != nil || n == 0 {
			return nil,
				fmt.Errorf("IBCONDUIT_ADDR=%q: want host:port of rank 0, as node1:7777, with a port from 1 to 65535", a)
		}
		d.addr = a
	}
	if j := env.get("IBCONDUIT_JOB"); j != "" {
		d.job = j
	}
	if d.size > 1 && d.addr == "" && !env.has("IBCONDUIT_SOCKET") {
		return nil,
			fmt.Errorf("%s=%d of %s=%d, but no address to meet at: set IBCONDUIT_ADDR=host:port of rank 0 on all ranks",
				rankVar, d.rank, sizeVar, d.size)
	}
	return d, nil
}

func fromPMI(env environment) (*detected, error) {
	switch {
	case env.has("PMI_FD"):
		closeOnExec(env.get("PMI_FD"))
		closeOnExec(env.get("HYDI_CONTROL_FD"))
		if !env.has("PMI_RANK", "PMI_SIZE") {
			return nil, errors.New("PMI_FD is set without PMI_RANK and PMI_SIZE")
		}
		if env.get("PMI_SIZE") == "1" && !env.has("IBCONDUIT_BOOTSTRAP") {
			return &detected{backend: "self", by: "PMI_SIZE"}, nil // any number of programs may be this rank
		}
		return &detected{by: "PMI_FD"}, nil
	case env.has("PMI_PORT"):
		if !env.has("PMI_ID") {
			return nil, errors.New("PMI_PORT is set without PMI_ID")
		}
		return &detected{by: "PMI_PORT"}, nil
	}
	return nil, nil
}

// loadPMIx is pmix.Load, except in tests.
var loadPMIx = pmix.Load

// fromPMIx needs a library that fits the launcher's; without one a later source may do.
func fromPMIx(env environment) (*detected, error) {
	if !env.has("PMIX_RANK", "PMIX_NAMESPACE") {
		return nil, nil
	}
	if _, err := loadPMIx(env.get(pmix.EnvLibrary)); err != nil {
		return nil,
			fmt.Errorf("this is a rank of a PMIx job (PMIX_RANK=%s): %w; or use srun --mpi=pmi2 or mpiexec.hydra, or %s; "+
				"IBCONDUIT_BOOTSTRAP=self makes every process a job of its own", env.get("PMIX_RANK"), err, meetOverTCP)
	}
	return &detected{by: "PMIX_RANK"}, nil
}

// orSelf ends errors about variables that others than launchers set, too.
const orSelf = "; IBCONDUIT_BOOTSTRAP=self makes every process a job of its own"

const meetOverTCP = "set IBCONDUIT_ADDR=host:port of rank 0 and IBCONDUIT_SECRET_FILE on all ranks to meet over TCP"

// fromTorchrun is fromGeneric where the variables are surely torchrun's.
func fromTorchrun(env environment) (*detected, error) {
	if !env.has("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE") {
		return nil, nil
	}
	return fromGeneric(env)
}

// fromGeneric reads torchrun's variables. The agent may own MASTER_PORT
// itself, so we meet at the next one.
func fromGeneric(env environment) (*detected, error) {
	if env.has("RANK") != env.has("WORLD_SIZE") {
		return nil, errors.New("only one of RANK and WORLD_SIZE is set" + orSelf)
	}
	if !env.has("RANK") {
		return nil, nil
	}
	d := &detected{by: "RANK", job: env.get("TORCHELASTIC_RUN_ID")}
	if env.has("MASTER_ADDR", "MASTER_PORT") {
		port, err := portAfter(env.get("MASTER_PORT"))
		if err != nil {
			return nil, fmt.Errorf("MASTER_PORT: %w", err)
		}
		d.addr = joinHostPort(env.get("MASTER_ADDR"), port)
	} else if !env.has("IBCONDUIT_ADDR") && env.get("WORLD_SIZE") != "1" {
		return nil, errors.New("RANK and WORLD_SIZE are set without MASTER_ADDR and MASTER_PORT" + orSelf)
	}
	return d.meet(env, "RANK", "WORLD_SIZE")
}
