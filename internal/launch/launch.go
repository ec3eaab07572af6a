// Package launch starts the ranks of a job and sees them to their end. Run (run_linux.go) does not
// know where they run: a starter starts them (rank_linux.go), as processes of this host
// (local_linux.go) or by agents on others (hosts_linux.go, ssh_linux.go), which are this program
// too and start processes as it does (agent_linux.go).
//
// Each rank gets the variables that package bootstrap reads, the job's secret through a pipe, a
// file that lists the ranks that have ended, and, if it is rank 0, a listening unix socket and a
// port on loopback, so that no port can be taken in between. Lines of output are kept whole, unless
// their end takes longer than 100 ms, or with Config.Direct.
//
// Nothing is left behind: a rank is the leader of a process group that is
// killed when the rank has ended; the kernel kills the ranks when the launching
// process dies, however it dies (PR_SET_PDEATHSIG). What a rank started and
// moved out of its group is killed with Config.Adopt. What ranks started is killed
// with Config.Guard even if the launching process is killed by SIGKILL; what survives
// then is only a process that was started with an environment without
// IBCONDUIT_JOB, or as another user.
package launch

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// MaxRanks is how many ranks package bootstrap lets meet; a host has processes for a part of them.
const MaxRanks = 1 << 20

// Config says what to run. Path and N are needed, or Programs.
type Config struct {
	// N is the number of ranks, from 1 to MaxRanks; with Programs it is their sum.
	N int
	// Path is the program; without a slash it is looked up in PATH.
	Path string
	// Args of the program, without its name.
	Args []string
	// Programs of a job of several, in the place of N, Path and Args: the ranks of the first come
	// first. Package bootstrap then compares no builds.
	Programs []Program
	// Hosts, where not all ranks run on this one; see there. Then this process starts nothing but
	// agents: Direct, Adopt and Guard are theirs.
	Hosts []Host
	// Agent are the arguments with which this program calls Agent. Default: "--agent".
	Agent []string
	// SSH is the program that starts agents, and its first arguments. Default: "ssh".
	SSH []string
	// Silence is how long nothing may be heard of a host, or a host of this process, until it is
	// lost. Default: 30 s.
	Silence time.Duration
	// Bind is which processors a rank may use: "core", one core for each rank of a host; "numa",
	// one NUMA node; or "", all that this process may use.
	Bind string
	// Placement reports where each rank runs, and which processors it may use.
	Placement bool
	// Env of all ranks, as "K=V". Variables by which an outer job identifies
	// its ranks are removed. Default: os.Environ().
	Env []string
	// RankEnv adds variables for one rank, none of those that Sets names. May be nil.
	RankEnv func(rank int) []string
	// Dir is the working directory. Default: this process's.
	Dir string

	// Stdin is given to rank 0; the others read nothing. Default: nothing.
	Stdin *os.File
	// Stdout and Stderr take the ranks' output; the same writer for both is
	// written by one goroutine at a time. Default: os.Stdout and os.Stderr.
	Stdout, Stderr io.Writer
	// Direct gives the ranks Stdout and Stderr themselves where these are files: what they write is
	// not kept back, delayed or put in order, and a terminal is one to them. Prefix must be nil.
	Direct bool
	// Prefix begins every line of a rank's output. May be nil.
	Prefix func(rank int) string
	// Output is a directory, made where it is missing, for a file of each rank's standard output and
	// one of its standard error, named by OutputFile, instead of Stdout and Stderr. Default: none.
	Output string
	// Report receives the launcher's own messages. Default: discarded.
	Report func(message string)

	// Grace is how long the others may take to end by themselves when a rank
	// has failed, and again after SIGTERM, before SIGKILL; and, where the job
	// is ended from outside, how long the reader of the output may take; and,
	// once all ranks have ended, how long output waits for a full disk. It must exceed the time
	// in which a rank reports why it ends; package bootstrap takes up to 3 s where a rank is
	// missing. Default: 4 s.
	Grace time.Duration
	// Stacks sends SIGQUIT when the job is ended by its context, and SIGTERM a Grace later: Go
	// programs print where their goroutines are.
	Stacks bool
	// Signals are forwarded to all ranks; a second SIGINT kills them. The
	// caller has set up the channel with signal.Notify. May be nil.
	Signals <-chan os.Signal
	// JobControl stops the ranks when this process is to stop (SIGTSTP, SIGTTIN, SIGTTOU), and then
	// the process itself; SIGCONT continues them. Where there is a terminal, rank 0 stays in the
	// process group of this process, so that it reads the terminal as any program that a shell
	// started. It takes Adopt; main must begin with GuardMain.
	JobControl bool
	// Adopt makes this process the parent of everything that the ranks leave
	// behind, and kills that at the end, unless it runs as another user. For programs
	// that do nothing but launch one job, as all other children of the process die too.
	Adopt bool
	// Guard starts a process of this program beside the job that kills processes that the
	// ranks started if this process is killed. main must begin with GuardMain.
	Guard bool
}

// outer lists the variables by which an outer job identifies its ranks to
// package bootstrap: they would contradict ours.
var outer = []string{
	"IBCONDUIT_RANK", "IBCONDUIT_SIZE", "IBCONDUIT_ADDR", "IBCONDUIT_JOB", "IBCONDUIT_BOOTSTRAP",
	"IBCONDUIT_SECRET", "IBCONDUIT_SECRET_FILE", "IBCONDUIT_SECRET_FD", "IBCONDUIT_LISTEN_FD", "IBCONDUIT_LIFE_FD",
	"IBCONDUIT_ENDED_FD", "IBCONDUIT_SOCKET", "IBCONDUIT_SOCKET_FD", "IBCONDUIT_LISTEN", "IBCONDUIT_PROGRAMS",
}

// Sets reports whether Run itself sets a rank's variable: with another value the
// ranks would not find each other, nor the guard what they started.
func Sets(variable string) bool {
	return slices.Contains(outer, variable) && !slices.Contains(chosen, variable)
}

// chosen are variables of outer that a user may choose for the ranks.
var chosen = []string{"IBCONDUIT_BOOTSTRAP", "IBCONDUIT_SECRET", "IBCONDUIT_SECRET_FILE"}

// Program is one of a job of several.
type Program struct {
	// N is the number of its ranks, from 1.
	N int
	// Path and Args are as in Config.
	Path string
	Args []string
	// Env adds variables for its ranks, none of those that Sets names. May be nil.
	Env []string
}

// HostLost is the exit code of a rank of a lost host, and of a job with a host that could not
// be used.
const HostLost = 255

// Host is one that ranks run on. An agent, which is this program with Config.Agent as its
// arguments, is started there by Config.SSH and starts them; all data for it, the job's secret
// too, and all from it go through its standard input and output. So do the connections by
// which the ranks meet: hosts need no other way to each other for that. It gets the working
// directory of this process and the environment but the variables of a host or a session (see
// Sent).
type Host struct {
	// Name is what ssh is given; "localhost" and the name of this host take no ssh.
	Name string
	// Ranks are the numbers of the ranks there. Each rank is on one host.
	Ranks []int
}

// OnThisHost: a host of this name takes no ssh.
func OnThisHost(name string) bool {
	return strings.EqualFold(name, "localhost") || strings.EqualFold(name, hostName())
}

func hostName() string {
	name, _ := os.Hostname()
	return name
}

// HostError says that a host could not be used.
type HostError struct {
	Host string
	Err  error
	code int // 0: HostLost
}

func (e *HostError) Error() string { return fmt.Sprintf("launch: host %s: %v", e.Host, e.Err) }
func (e *HostError) Unwrap() error { return e.Err }

// ExitCode is the code of the StartError on that host, or HostLost.
func (e *HostError) ExitCode() int { return cmp.Or(e.code, HostLost) }

// OutputFile is the name of a rank's file in Config.Output; fd is 1 or 2, ranks are how many there
// are: rank-03.out, rank-03.err.
func OutputFile(rank, ranks, fd int) string {
	return fmt.Sprintf("rank-%0*d.%s", len(strconv.Itoa(ranks-1)), rank, [...]string{1: "out", 2: "err"}[fd])
}

// program is a rank's.
func (c *Config) program(rank int) *Program {
	for i := range c.Programs {
		if rank < c.Programs[i].N {
			return &c.Programs[i]
		}
		rank -= c.Programs[i].N
	}
	return &Program{}
}

func (c Config) withDefaults() (Config, error) {
	if c.Programs == nil {
		c.Programs = []Program{{N: c.N, Path: c.Path, Args: c.Args}}
	}
	c.N = 0
	for _, p := range c.Programs {
		if p.N < 1 {
			return c, fmt.Errorf("launch: %d ranks: need at least 1", p.N)
		}
		c.N += p.N
	}
	if c.N > MaxRanks {
		return c, fmt.Errorf("launch: %d ranks: at most %d can meet", c.N, MaxRanks)
	}
	if c.JobControl && !c.Adopt {
		return c, errors.New("launch: JobControl takes Adopt")
	}
	if c.Output != "" && (c.Direct || c.Prefix != nil) {
		return c, errors.New("launch: Output: files have no prefix, and ranks do not write them themselves")
	}
	if c.Direct && c.Prefix != nil {
		return c, errors.New("launch: Direct: what ranks write themselves has no prefix")
	}
	if err := c.checkHosts(); err != nil {
		return c, err
	}
	if c.Env == nil {
		c.Env = os.Environ()
	}
	if c.RankEnv == nil {
		c.RankEnv = func(int) []string { return nil }
	}
	if c.Stdout == nil {
		c.Stdout = os.Stdout
	}
	if c.Stderr == nil {
		c.Stderr = os.Stderr
	}
	if c.Prefix == nil {
		c.Prefix = func(int) string { return "" }
	}
	if c.Report == nil {
		c.Report = func(string) {}
	}
	if c.Agent == nil {
		c.Agent = []string{"--agent"}
	}
	if len(c.SSH) == 0 {
		c.SSH = []string{"ssh"}
	}
	if c.Silence <= 0 {
		c.Silence = 30 * time.Second
	}
	if c.Grace <= 0 {
		c.Grace = 4 * time.Second
	}
	return c, nil
}

func (c *Config) checkHosts() error {
	seen := map[int]bool{}
	for _, h := range c.Hosts {
		if h.Name == "" || strings.HasPrefix(h.Name, "-") {
			return fmt.Errorf("launch: %q is no name of a host", h.Name)
		}
		for _, n := range h.Ranks {
			if n < 0 || n >= c.N || seen[n] {
				return fmt.Errorf("launch: host %s: rank %d is on two hosts, or outside of the job's %d ranks", h.Name, n, c.N)
			}
			seen[n] = true
		}
	}
	if len(c.Hosts) > 0 && len(seen) < c.N {
		return fmt.Errorf("launch: the hosts have %d of %d ranks", len(seen), c.N)
	}
	if len(c.Hosts) > 0 && c.Dir == "" {
		var err error
		if c.Dir, err = os.Getwd(); err != nil {
			return fmt.Errorf("launch: the working directory, which is to be that of the ranks on all hosts: %w", err)
		}
	}
	return nil
}

// StartError says that a rank could not be started.
type StartError struct {
	Rank int
	Path string
	Err  error
}

func (e *StartError) Error() string {
	return fmt.Sprintf("launch: rank %d: %s: %v%s", e.Rank, e.Path, e.Err, e.remedy())
}

func (e *StartError) remedy() string {
	switch {
	case limits(e.Err) != "":
		return limits(e.Err)
	case errors.Is(e.Err, syscall.ENOEXEC):
		return " (it is no program for this machine, and no script that begins with #!)"
	case errors.Is(e.Err, syscall.ENOENT) && exists(e.Path):
		return " (the file is there: what it is run by is not, the interpreter after #! or the dynamic linker)"
	case errors.Is(e.Err, syscall.EACCES) && exists(e.Path):
		return " (it is a directory, not executable, or on a file system that is mounted with noexec)"
	}
	return ""
}

// limits says which one an error has met.
func limits(err error) string {
	switch {
	case errors.Is(err, syscall.EMFILE):
		return " (each rank takes three or four descriptors of the launcher: raise ulimit -n, or start fewer ranks)"
	case errors.Is(err, syscall.EAGAIN):
		return " (the user, or the container, may have no more processes: raise ulimit -u or pids.max, or start fewer ranks)"
	}
	return ""
}

func exists(path string) bool {
	found, err := exec.LookPath(path)
	if err != nil {
		found = path
	}
	_, err = os.Stat(found)
	return err == nil
}

func (e *StartError) Unwrap() error { return e.Err }

// ExitCode is what a shell would return: 127 for a program that does not
// exist, 126 for one that cannot be executed.
func (e *StartError) ExitCode() int {
	if errors.Is(e.Err, exec.ErrNotFound) || errors.Is(e.Err, fs.ErrNotExist) {
		return 127
	}
	return 126
}
