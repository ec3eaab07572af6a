// Command ibrun starts the ranks of a job on this host.
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
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/ibconduit/conduit/internal/launch"
)

const description = `Start the ranks of a job on this host and wait for them.

The exit code is that of the first rank that failed, 128 and the signal where
it was killed, or 0. Further codes: 124 when --timeout ended the job, 126 when
the program cannot be executed, 127 when it does not exist, 80 for wrong usage
or when there is nothing to --preload.

SIGINT, SIGTERM, SIGQUIT, SIGUSR1, SIGUSR2 and, unless under nohup, SIGHUP are
forwarded to all ranks; a second SIGINT kills them. When one rank fails, the
others have --grace to end by themselves, then SIGTERM and --grace again, then
SIGKILL. A job that is ended gives --grace to a reader of its output that
has stopped, and one that has ended to a disk that is full. No rank outlives ibrun, and nothing that a rank started but what
runs as another user; if ibrun is killed, what was started with an environment
without IBCONDUIT_JOB goes on too.
Rank 0 reads ibrun's standard input, the others read nothing. Where that is a
terminal, or there is one, rank 0 is in the process group of ibrun, and reads
it and is interrupted by it as any program. To stop ibrun (Ctrl-Z, or SIGTSTP)
stops all ranks, SIGCONT continues them.`

type command struct {
	Ranks   int              `short:"n" default:"1" placeholder:"N" help:"Number of ranks, also as -np N. Default: 1."`
	Prefix  *bool            `negatable:"" help:"Begin each line of output with the rank's number. Default: with more than one rank. Without, ranks write to ibrun's own output themselves."`
	Env     []string         `sep:"none" placeholder:"K=V" help:"Set a variable for all ranks. May be repeated."`
	Preload bool             `help:"Preload libmemevents.so into all ranks, before what LD_PRELOAD holds already. It is looked for beside ibrun, in ../lib, ../lib/ibconduit and .., or where IBCONDUIT_MEMEVENTS_LIB says."`
	Timeout time.Duration    `placeholder:"D" help:"End the job after this time, as 90s or 5m. Default: never."`
	Grace   time.Duration    `default:"4s" placeholder:"D" help:"Time for ranks to end by themselves after a failure, and again after SIGTERM. Default: 4s."`
	Version kong.VersionFlag `help:"Print the version and end."`
	Program []string         `arg:"" passthrough:"partial" help:"Program and its arguments."`
}

func main() {
	launch.GuardMain()
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func run(args []string, stdin *os.File, stdout, stderr io.Writer) int {
	var cmd command
	code, done := parse(&cmd, args, stdout, stderr)
	if done {
		return code
	}
	env, err := cmd.env()
	if err != nil {
		fmt.Fprintf(stderr, "ibrun: %v\n", err)
		return 80
	}
	ctx := context.Background()
	if cmd.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, cmd.Timeout, fmt.Errorf("not finished within %v: %w", cmd.Timeout, context.DeadlineExceeded))
		defer cancel()
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwarded()...)
	defer signal.Stop(signals)

	report := func(text string) {
		said := make(chan struct{})
		go func() {
			defer close(said)
			fmt.Fprintln(stderr, "ibrun: "+text)
		}()
		select {
		case <-said:
		case <-time.After(time.Second): // it is not read, and the ranks must be ended all the same
		}
	}
	code, err = launch.Run(ctx, launch.Config{
		N: cmd.Ranks, Path: cmd.Program[0], Args: cmd.Program[1:],
		RankEnv: func(int) []string { return env }, Direct: !cmd.prefixes(), Prefix: cmd.prefix(),
		Stdin: stdin, Stdout: stdout, Stderr: stderr,
		Grace: cmd.Grace, Signals: signals, Report: report, JobControl: true, Adopt: true, Guard: true,
	})
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
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}), kong.Vars{"version": version()})
	if err != nil {
		panic(err) // the struct tags above are wrong
	}
	_, err = parser.Parse(asMPI(args))
	if done {
		return code, true
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

// asMPI takes -np, as users of mpirun write, for -n. What follows the program is the program's.
func asMPI(args []string) []string {
	args = slices.Clone(args)
	for i := 0; i < len(args) && strings.HasPrefix(args[i], "-") && args[i] != "--"; i++ {
		switch args[i] {
		case "-np":
			args[i] = "-n"
			i++
		case "-n", "--ranks", "--env", "--timeout", "--grace":
			i++ // its value
		}
	}
	return args
}

// version is that of the module, or of the commit, that ibrun was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "ibrun (unknown version)"
	}
	return fmt.Sprintf("ibrun %s %s %s/%s", info.Main.Version, info.GoVersion, runtime.GOOS, runtime.GOARCH)
}

func (c *command) check() error {
	if len(c.Program) > 0 && c.Program[0] == "--" {
		c.Program = c.Program[1:]
	}
	switch {
	case len(c.Program) == 0:
		return errors.New("no program to run")
	case c.Ranks < 1:
		return fmt.Errorf("-n %d: need at least 1 rank", c.Ranks)
	case c.Ranks > launch.MaxRanks:
		return fmt.Errorf("-n %d: at most %d ranks can meet", c.Ranks, launch.MaxRanks)
	case c.Grace <= 0:
		return fmt.Errorf("--grace=%v: need a time above 0", c.Grace)
	case c.Timeout < 0:
		return fmt.Errorf("--timeout=%v: need a time above 0, or 0 for never", c.Timeout)
	}
	for _, kv := range c.Env {
		k, _, ok := strings.Cut(kv, "=")
		switch {
		case !ok || k == "":
			return fmt.Errorf("--env=%s: want K=V", kv)
		case launch.Sets(k):
			return fmt.Errorf("--env=%s: ibrun itself sets %s for each rank", kv, k)
		}
	}
	return nil
}

// env are the variables to add for all ranks.
func (c *command) env() ([]string, error) {
	if !c.Preload {
		return c.Env, nil
	}
	before := os.Getenv("LD_PRELOAD")
	for _, kv := range c.Env {
		if v, ok := strings.CutPrefix(kv, "LD_PRELOAD="); ok {
			before = v
		}
	}
	kv, err := preload(before)
	return append(slices.Clone(c.Env), kv), err
}

func (c *command) prefixes() bool {
	if c.Prefix != nil {
		return *c.Prefix
	}
	return c.Ranks > 1
}

// prefix aligns the numbers: "[ 3] ".
func (c *command) prefix() func(int) string {
	if !c.prefixes() {
		return nil
	}
	width := len(strconv.Itoa(c.Ranks - 1))
	return func(rank int) string { return fmt.Sprintf("[%*d] ", width, rank) }
}
