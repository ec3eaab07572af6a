package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/ibconduit/conduit/internal/pmix"
)

// environment reads the launcher's variables through an injected function.
type environment func(name string) (string, bool)

func (env environment) get(name string) string {
	v, _ := env(name)
	return v
}

func (env environment) has(names ...string) bool {
	for _, n := range names {
		if env.get(n) == "" {
			return false
		}
	}
	return true
}

func (env environment) any(names ...string) bool {
	for _, n := range names {
		if env.get(n) != "" {
			return true
		}
	}
	return false
}

// number reads a rank or a size.
func (env environment) number(name string) (int, error) {
	v := env.get(name)
	n, err := strconv.ParseUint(v, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%s=%q is not a number from 0 to %d", name, v, math.MaxInt32)
	}
	return int(n), nil
}

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

func (d detected) join(ctx context.Context, opts Options) (backend, error) {
	switch d.backend {
	case "self":
		return newSelf(), nil
	case "pmi1":
		return joinPMI1(ctx, d.env, opts)
	case "pmix":
		return joinPMIx(ctx, opts)
	}
	rv := &rendezvous{
		rank: d.rank, size: d.size, job: d.job, addr: d.addr,
		insecure: d.env.get("IBCONDUIT_INSECURE") == "1",
		timeout:  opts.Timeout, log: opts.Log, protocol: protocol, handshake: handshakeTime, grace: graceTime, exit: os.Exit,
		life: holdLife(d.env), ended: openEnded(d.env), socket: d.env.get("IBCONDUIT_SOCKET"),
		listenAt: d.env.get("IBCONDUIT_LISTEN"),
	}
	defer func() { rv.ended.close() }() // unless a peer keeps it
	var err error
	if rv.secret, err = readSecret(d.env); err != nil {
		return nil, err
	}
	if rv.addrFrom = d.addrFrom; d.munge && d.size > 1 && rv.secret == nil && !rv.insecure {
		rv.munge, err = findMunge(ctx, d.job)
		if err != nil && d.addrFrom != "" {
			return nil, fmt.Errorf("rank %d: the ranks of this step have no secret, "+
				"and munge cannot prove whose they are: %w; before srun: "+
				"export IBCONDUIT_SECRET=$(openssl rand -hex 32), or use srun --mpi=pmi2", d.rank, err)
		}
	}
	if err = rv.takeListeners(d.env); err != nil {
		return nil, err
	}
	return rv.join(ctx)
}

// source is one way to learn rank and size. It returns false when its
// variables are absent, and an error when they are there but cannot be used;
// a later source may still be usable.
type source struct {
	backend string
	find    func(environment) (detected, bool, error)
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
	{"tcp", fromOpenMPI},
	{"tcp", fromGeneric},
	{"tcp", fromIndexedJob},
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
		ask = append(ask[:len(ask):len(ask)], source{"tcp", fromPMIRank})
	}
	if v := lookup.get("IBCONDUIT_INSECURE"); v != "" && v != "0" && v != "1" {
		return detected{}, fmt.Errorf("IBCONDUIT_INSECURE=%q: want 0 or 1", v)
	}
	var unusable error
	for _, s := range ask {
		if want != "" && !s.serves(want) {
			continue
		}
		d, ok, err := s.find(lookup)
		if err != nil && unusable == nil {
			unusable = err
		}
		if ok {
			d.env = lookup
			if d.backend == "" {
				d.backend = s.backend
			}
			return d, nil
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

func fromOwn(env environment) (detected, bool, error) {
	switch {
	case env.has("IBCONDUIT_RANK") && !env.has("IBCONDUIT_SIZE"):
		return detected{}, false, errors.New("IBCONDUIT_RANK is set without IBCONDUIT_SIZE")
	case !env.has("IBCONDUIT_RANK"):
		return detected{}, false, nil // IBCONDUIT_SIZE only completes an Indexed Job
	}
	d := detected{by: "IBCONDUIT_RANK", backend: "tcp"}
	if env.any("IBCONDUIT_LISTEN_FD", "IBCONDUIT_SOCKET_FD", "IBCONDUIT_SECRET_FD") {
		d.backend = "launch"
	}
	return d.meet(env, "IBCONDUIT_RANK", "IBCONDUIT_SIZE")
}

// meet completes a detection that ends in our own rendezvous.
func (d detected) meet(env environment, rankVar, sizeVar string) (detected, bool, error) {
	var err error
	if d.rank, err = env.number(rankVar); err != nil {
		return detected{}, false, err
	}
	if d.size, err = env.number(sizeVar); err != nil {
		return detected{}, false, err
	}
	if d.size > MaxRanks {
		return detected{}, false, fmt.Errorf("%s=%d: at most %d ranks can meet over TCP", sizeVar, d.size, MaxRanks)
	}
	if d.size < 1 || d.rank >= d.size {
		return detected{}, false, fmt.Errorf("%s=%d and %s=%d: ranks go from 0 to size-1", rankVar, d.rank, sizeVar, d.size)
	}
	if a := env.get("IBCONDUIT_ADDR"); a != "" {
		host, port, err := net.SplitHostPort(a)
		if n, e := strconv.ParseUint(port, 10, 16); err != nil || host == "" || e != nil || n == 0 {
			return detected{}, false,
				fmt.Errorf("IBCONDUIT_ADDR=%q: want host:port of rank 0, as node1:7777, with a port from 1 to 65535", a)
		}
		d.addr = a
	}
	if j := env.get("IBCONDUIT_JOB"); j != "" {
		d.job = j
	}
	if d.size > 1 && d.addr == "" && !env.has("IBCONDUIT_SOCKET") {
		return detected{}, false,
			fmt.Errorf("%s=%d of %s=%d, but no address to meet at: set IBCONDUIT_ADDR=host:port of rank 0 on all ranks",
				rankVar, d.rank, sizeVar, d.size)
	}
	return d, true, nil
}

func fromPMI(env environment) (detected, bool, error) {
	switch {
	case env.has("PMI_FD"):
		closeOnExec(env.get("PMI_FD"))
		closeOnExec(env.get("HYDI_CONTROL_FD"))
		if !env.has("PMI_RANK", "PMI_SIZE") {
			return detected{}, false, errors.New("PMI_FD is set without PMI_RANK and PMI_SIZE")
		}
		if env.get("PMI_SIZE") == "1" && !env.has("IBCONDUIT_BOOTSTRAP") {
			return detected{backend: "self", by: "PMI_SIZE"}, true, nil // any number of programs may be this rank
		}
		return detected{by: "PMI_FD"}, true, nil
	case env.has("PMI_PORT"):
		if !env.has("PMI_ID") {
			return detected{}, false, errors.New("PMI_PORT is set without PMI_ID")
		}
		return detected{by: "PMI_PORT"}, true, nil
	}
	return detected{}, false, nil
}

// fromPMIRank serves IBCONDUIT_BOOTSTRAP=tcp under a PMI launcher.
func fromPMIRank(env environment) (detected, bool, error) {
	if !env.has("PMI_RANK", "PMI_SIZE") {
		return detected{}, false, nil
	}
	return detected{by: "PMI_RANK"}.meet(env, "PMI_RANK", "PMI_SIZE")
}

// loadPMIx is pmix.Load, except in tests.
var loadPMIx = pmix.Load

// fromPMIx needs a library that fits the launcher's; without one a later source may do.
func fromPMIx(env environment) (detected, bool, error) {
	if !env.has("PMIX_RANK", "PMIX_NAMESPACE") {
		return detected{}, false, nil
	}
	if _, err := loadPMIx(env.get(pmix.EnvLibrary)); err != nil {
		return detected{}, false,
			fmt.Errorf("this is a rank of a PMIx job (PMIX_RANK=%s): %w; or use srun --mpi=pmi2 or mpiexec.hydra, or %s; "+
				"IBCONDUIT_BOOTSTRAP=self makes every process a job of its own", env.get("PMIX_RANK"), err, meetOverTCP)
	}
	return detected{by: "PMIX_RANK"}, true, nil
}

// orSelf ends errors about variables that others than launchers set, too.
const orSelf = "; IBCONDUIT_BOOTSTRAP=self makes every process a job of its own"

const meetOverTCP = "set IBCONDUIT_ADDR=host:port of rank 0 and IBCONDUIT_SECRET_FILE on all ranks to meet over TCP"

func fromOpenMPI(env environment) (detected, bool, error) {
	if !env.has("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE") {
		return detected{}, false, nil
	}
	return detected{by: "OMPI_COMM_WORLD_RANK", job: env.get("PMIX_NAMESPACE")}.
		meet(env, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
}

// fromTorchrun is fromGeneric where the variables are surely torchrun's.
func fromTorchrun(env environment) (detected, bool, error) {
	if !env.has("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE") {
		return detected{}, false, nil
	}
	return fromGeneric(env)
}

// fromGeneric reads torchrun's variables. The agent may own MASTER_PORT
// itself, so we meet at the next one.
func fromGeneric(env environment) (detected, bool, error) {
	if env.has("RANK") != env.has("WORLD_SIZE") {
		return detected{}, false, errors.New("only one of RANK and WORLD_SIZE is set" + orSelf)
	}
	if !env.has("RANK") {
		return detected{}, false, nil
	}
	d := detected{by: "RANK", job: env.get("TORCHELASTIC_RUN_ID")}
	if env.has("MASTER_ADDR", "MASTER_PORT") {
		port, err := portAfter(env.get("MASTER_PORT"))
		if err != nil {
			return detected{}, false, fmt.Errorf("MASTER_PORT: %w", err)
		}
		d.addr = joinHostPort(env.get("MASTER_ADDR"), port)
	} else if !env.has("IBCONDUIT_ADDR") && env.get("WORLD_SIZE") != "1" {
		return detected{}, false, errors.New("RANK and WORLD_SIZE are set without MASTER_ADDR and MASTER_PORT" + orSelf)
	}
	return d.meet(env, "RANK", "WORLD_SIZE")
}

// fromIndexedJob: Kubernetes gives a pod its index, but not the number.
func fromIndexedJob(env environment) (detected, bool, error) {
	if !env.has("JOB_COMPLETION_INDEX", "IBCONDUIT_SIZE") {
		return detected{}, false, nil
	}
	return detected{by: "JOB_COMPLETION_INDEX"}.meet(env, "JOB_COMPLETION_INDEX", "IBCONDUIT_SIZE")
}

// strayOwn: some of our variables, but no rank.
func strayOwn(env environment) error {
	if env.any("IBCONDUIT_SIZE", "IBCONDUIT_ADDR", "IBCONDUIT_LISTEN_FD", "IBCONDUIT_SECRET_FD") {
		return errors.New("variables of a job are set (IBCONDUIT_SIZE, IBCONDUIT_ADDR or a descriptor), " +
			"but nothing says which rank this is: set IBCONDUIT_RANK and IBCONDUIT_SIZE, or IBCONDUIT_BOOTSTRAP=self")
	}
	return nil
}

// joinHostPort takes an IPv6 address with or without brackets.
func joinHostPort(host, port string) string {
	host = strings.Trim(host, "[]")
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":" + port
}
