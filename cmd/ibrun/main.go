// Command ibrun starts the ranks of a job, on this host or several.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/ibconduit/conduit/cmd/internal/given"
	"github.com/ibconduit/conduit/internal/launch"
)

const description = `Start the ranks of a job, on this host or several, and wait for them. Several
programs: ibrun -n 1 a : -n 3 b.

The exit code is that of the first rank that failed, 128 and the signal where
it was killed, or 0. Further codes: 124 when --timeout ended the job, 126 when
the program cannot be executed, 127 when it does not exist, 80 for wrong usage
or when there is nothing to --preload, 255 when a host is lost or not reached.

SIGINT, SIGTERM, SIGQUIT, SIGUSR1, SIGUSR2 and, unless under nohup, SIGHUP are
forwarded to all ranks; a second SIGINT kills them. When one rank fails, the
others have --grace to end by themselves, then SIGTERM and --grace again, then
SIGKILL. A job that is ended gives --grace to a reader of its output that
has stopped, and one that has ended to a disk that is full. No rank outlives ibrun, and nothing that a rank started but what
runs as another user; if ibrun is killed, what was started with an environment
without IBCONDUIT_JOB goes on too.
Rank 0 reads ibrun's standard input, the others read nothing. Where that is a
terminal, or there is one, rank 0 is in the process group of ibrun, and reads
it and is interrupted by it as any program. To stop ibrun (SIGTSTP, as by Ctrl-Z in a shell)
stops all ranks, SIGCONT continues them.

Over several hosts (-H, --hostfile) ranks are started by ssh, or what
IBCONDUIT_SSH names, which must not ask for a password; ibrun, the program and
the working directory are at the same paths everywhere. Ranks get the
environment of ibrun but what describes a host or a session (HOME, USER, SHELL,
TERM, TMPDIR, DISPLAY and the like, SSH_*, XDG_*, DBUS_*, GPG_*), which -x
sends too. Nothing but ssh's connection is needed for the ranks to meet. If it
is lost the ranks of that host end within --grace, and the job with them. In a
batch job of Slurm, PBS or LSF that has several hosts these are the default;
-H localhost keeps to this one.`

type command struct {
	Ranks    *int             `short:"n" placeholder:"N" help:"Number of ranks, also as -np N. Default: 1, or as many as the hosts have."`
	Host     []string         `short:"H" placeholder:"A:N,..." help:"Hosts, with how many ranks each has (default: 1). With fewer than -n in all they are gone through again."`
	Hostfile string           `placeholder:"FILE" help:"The same from a file: lines of a host, as a:2 or as a slots=2; # begins a comment. An unknown word is an error."`
	Prefix   *bool            `negatable:"" help:"Begin each line of output with the rank's number, and its host where there are several. Default: with more than one rank. Without, ranks write to ibrun's own output themselves."`
	Output   string           `placeholder:"DIR" help:"Write the output of each rank to files of this directory: rank-0.out, rank-0.err."`
	Env      []string         `short:"x" sep:"none" placeholder:"K=V" help:"Set a variable for the ranks of one program; K alone: to the value that it has here. May be repeated. What all programs are to have stands before ibrun: K=V ibrun ..."`
	Preload  bool             `help:"Preload libmemevents.so into all ranks, before what LD_PRELOAD holds already. It is looked for beside ibrun, in ../lib, ../lib/ibconduit and .., or where IBCONDUIT_MEMEVENTS_LIB says."`
	BindTo   string           `enum:"none,core,numa" default:"none" placeholder:"WHAT" help:"Give each rank a core of its host, with all its hardware threads, or spread the ranks over the NUMA nodes, of the processors that ibrun may use there. Other jobs of the host are not seen. Default: none; core, numa."`
	Report   bool             `help:"Say where each rank runs, and on which processors."`
	Timeout  time.Duration    `placeholder:"D" help:"End the job after this time, as 90s or 5m: with SIGQUIT, by which Go programs print their stacks, after --grace SIGTERM, then SIGKILL. Default: never."`
	Grace    time.Duration    `default:"4s" placeholder:"D" help:"Time for ranks to end by themselves after a failure, and again after SIGTERM. Default: 4s."`
	Version  kong.VersionFlag `help:"Print the version and end."`
	Program  []string         `arg:"" passthrough:"partial" help:"Program and its arguments. A lone : begins another program, with -n and -x of its own; not after --."`

	all []segment // the programs; the first has its ranks from config
}

// segment is one program of a job; these are its options behind a colon.
type segment struct {
	Ranks   int      `short:"n" default:"1"`
	Env     []string `short:"x" sep:"none"`
	Program []string `arg:"" passthrough:"partial"`
}

func main() {
	launch.GuardMain()
	if len(os.Args) == 2 && os.Args[1] == "--agent" { // of another ibrun
		os.Exit(launch.Agent(os.Stdin, os.Stdout))
	}
	exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func run(args []string, stdin *os.File, stdout, stderr io.Writer) int {
	var cmd command
	code, done := parse(&cmd, args, stdout, stderr)
	if done {
		return code
	}
	cfg, err := cmd.config()
	if err != nil {
		fmt.Fprintf(stderr, "ibrun: %v\n", err)
		return 80
	}
	ctx := context.Background()
	if cmd.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, cmd.Timeout,
			fmt.Errorf("not finished within %v: %w", cmd.Timeout, context.DeadlineExceeded))
		defer cancel()
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwarded()...)
	defer signal.Stop(signals)

	report := func(text string) {
		said := make(chan struct{})
		go func() {
			defer close(said)
			fmt.Fprintln(stderr, "ibrun: "+strings.ReplaceAll(text, "\n", "\nibrun: "))
		}()
		select {
		case <-said:
		case <-time.After(time.Second): // it is not read, and the ranks must be ended all the same
		}
	}
	cfg.Stdin, cfg.Stdout, cfg.Stderr, cfg.Signals, cfg.Report = stdin, stdout, stderr, signals, report
	code, err = launch.Run(ctx, cfg)
	if err != nil {
		report(err.Error())
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return 124
	}
	return code
}

// parse returns done where there is nothing to run: help, or wrong usage.
func parse(cmd *command, args []string, stdout, stderr io.Writer) (code int, done bool) {
	parser, err := kong.New(cmd, kong.Name("ibrun"), kong.Description(description),
		kong.Writers(stdout, stderr), kong.Exit(func(c int) { code, done = c, true }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}), kong.Vars{"version": version()}, given.Values())
	if err != nil {
		panic(err) // the struct tags above are wrong
	}
	segments := split(args)
	cmd.Program = nil
	_, err = parser.Parse(segments[0].options())
	if done {
		return code, true
	}
	cmd.all = []segment{{Env: cmd.Env, Program: segments[0].program}}
	for _, s := range segments[1:] {
		if err == nil {
			err = cmd.add(s)
		}
	}
	if err == nil {
		err = cmd.check()
	}
	if err != nil {
		fmt.Fprintf(stderr, "ibrun: %v; try ibrun --help\n", err)
		return 80, true
	}
	return 0, false
}

// version is the version of the module, or of the commit, that ibrun was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "ibrun (unknown version)"
	}
	return fmt.Sprintf("ibrun %s %s %s/%s", info.Main.Version, info.GoVersion, runtime.GOOS, runtime.GOARCH)
}
