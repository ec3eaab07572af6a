package bootstrap

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/ibconduit/conduit/internal/hostlist"
)

// fromSlurm needs a step: in a batch script SLURM_PROCID and SLURM_NTASKS
// describe ranks that were not started. Without an address the ranks meet on
// the first host of the step.
func fromSlurm(env environment) (*detected, error) {
	if !inStep(env) || !env.has("SLURM_PROCID", "SLURM_STEP_NUM_TASKS") {
		return nil, nil
	}
	d := &detected{backend: "tcp", by: "SLURM_PROCID",
		job: env.get("SLURM_JOB_ID") + "." + env.get("SLURM_STEP_ID"), munge: true}
	if env.get("SLURM_STEP_NUM_TASKS") != "1" && !env.has("IBCONDUIT_ADDR") {
		hosts, err := hostlist.Expand(env.get("SLURM_STEP_NODELIST"))
		if err != nil {
			return nil,
				fmt.Errorf("SLURM_STEP_NODELIST=%q: %w; set IBCONDUIT_ADDR=host:port of rank 0 before srun, or use srun --mpi=pmi2",
					env.get("SLURM_STEP_NODELIST"), err)
		}
		port, from, err := stepPort(env)
		if err != nil {
			return nil, err
		}
		d.addr, d.addrFrom = joinHostPort(hosts[0], strconv.Itoa(port)), from
	}
	return d.meet(env, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
}

// Ports of steps that have none reserved: below those that Linux gives to connections
// (net.ipv4.ip_local_port_range, 32768 to 60999).
const firstStepPort, stepPorts = 20000, 12000

// stepPort is the same on all ranks of a step, and mostly differs between steps. from says where it
// is from, for the text of an error.
func stepPort(env environment) (port int, from string, err error) {
	if v := env.get("SLURM_STEP_RESV_PORTS"); v != "" {
		end := strings.IndexAny(v, ",-")
		if end < 0 {
			end = len(v)
		}
		port, err := strconv.ParseUint(v[:end], 10, 16)
		if err != nil || port == 0 {
			return 0, "", fmt.Errorf("SLURM_STEP_RESV_PORTS=%q does not begin with a port", v)
		}
		return int(port), "the first of SLURM_STEP_RESV_PORTS", nil
	}
	job, err := env.number("SLURM_JOB_ID")
	if err != nil {
		return 0, "", err
	}
	step, err := env.number("SLURM_STEP_ID")
	if err != nil {
		return 0, "", err
	}
	const spread = 251 // jobs of a site that follow each other are far apart
	return firstStepPort + int((uint64(job)*spread+uint64(step))%stepPorts),
		"a port made from the step's number: srun --resv-ports=1 reserves one, IBCONDUIT_ADDR=host:port names another", nil
}

// firstSpecialStep: from here on SLURM_STEP_ID names no step of ranks: the batch script,
// the shell of an interactive salloc (slurm.h, SLURM_INTERACTIVE_STEP and its neighbours).
const firstSpecialStep = 0xfffffff0

func inStep(env environment) bool {
	id, err := strconv.ParseUint(env.get("SLURM_STEP_ID"), 10, 32)
	return env.has("SLURM_STEP_ID") && (err != nil || id < firstSpecialStep)
}
