package launchertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ibconduit/conduit/bootstrap"
)

// roleVar makes the test's binary a rank. A role is one of roles, with arguments after colons.
const roleVar = "IBCONDUIT_TEST_ROLE"

func TestMain(m *testing.M) {
	role := strings.Split(os.Getenv(roleVar), ":")
	if role[0] == "" {
		code := m.Run()
		stopCluster()
		os.Exit(code)
	}
	os.Exit(play(role[0], role[1:]))
}

// Exit codes of ranks.
const (
	exitJoin  = 10 // New failed
	exitError = 11 // anything else did
)

// play joins by the environment and does what the role says.
func play(role string, args []string) int {
	if role == "watched" {
		return watched()
	}
	longest := 30 * time.Second
	if role == "wait" { // for a time limit of Slurm, too
		longest = 3 * time.Minute
	}
	ctx, cancel := context.WithTimeout(context.Background(), longest)
	defer cancel()
	b, err := bootstrap.New(ctx, bootstrap.Options{Timeout: 5 * time.Second})
	if err != nil {
		fmt.Println("join:", err)
		return exitJoin
	}
	say := func(format string, args ...any) { fmt.Printf("rank %d: %s\n", b.Rank(), fmt.Sprintf(format, args...)) }
	err = exchange(ctx, b)
	if err == nil && len(args) > 0 && args[0] == strconv.Itoa(b.Rank()) {
		return end(ctx, b, args[1])
	}
	switch {
	case err != nil:
	case role == "exchange":
		_, local, _ := b.Local()
		say("of %d by %s, %d here", b.Size(), b.Name(), local)
	case role == "barrier": // which another rank does not reach
		short, done := context.WithTimeout(ctx, 4*time.Second)
		err = b.Barrier(short)
		done()
	case role == "deaf":
		return end(ctx, b, role)
	case role == "wait": // for a signal
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGTERM)
		say("waits, process %d", os.Getpid())
		select {
		case s := <-signals:
			say("%v", s)
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if err != nil {
		say("%v", err)
		return exitError
	}
	if err := b.Close(); err != nil {
		say("close: %v", err)
		return exitError
	}
	return 0
}

// end is the end of a rank that does not keep to the rules.
func end(ctx context.Context, b bootstrap.Bootstrap, how string) int {
	switch how {
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case "abort":
		b.Abort(7, "told to")
	case "deaf": // to what asks it to end
		signal.Ignore(syscall.SIGTERM)
		fmt.Printf("rank %d: waits, process %d\n", b.Rank(), os.Getpid())
		<-ctx.Done()
		return exitError
	}
	code, err := strconv.Atoi(how)
	if err != nil {
		panic(err)
	}
	return code
}

// exchange sends blobs of lengths that differ between ranks and calls, and looks at those received.
func exchange(ctx context.Context, b bootstrap.Bootstrap) error {
	blob := func(rank, round int) []byte {
		return bytes.Repeat([]byte{byte(rank + 7*round)}, []int{0, 8, 1000 + 100*rank, 100_000}[round])
	}
	for round := range 4 {
		got, err := b.Exchange(ctx, blob(b.Rank(), round))
		if err != nil {
			return err
		}
		for r := range b.Size() {
			if !bytes.Equal(got[r], blob(r, round)) {
				return fmt.Errorf("exchange %d gave %d bytes that are not those of rank %d", round, len(got[r]), r)
			}
		}
		if err := b.Barrier(ctx); err != nil {
			return err
		}
	}
	return nil
}

// result is how a launcher ended.
type result struct {
	out  string // standard output and error
	code int
	took time.Duration
}

// run runs a launcher with this binary, or another program, as its ranks.
func run(t *testing.T, env []string, command ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// timeout(1) ends what the launcher leaves behind, and a launcher that ignores signals.
	cmd := exec.CommandContext(ctx, "timeout", append([]string{"-k", "2", "45"}, command...)...)
	cmd.Env = append(cleanEnv(), env...)
	cmd.WaitDelay = 5 * time.Second
	begun := time.Now()
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %v\n%s", command, err, out)
	}
	r := result{string(out), cmd.ProcessState.ExitCode(), time.Since(begun)}
	t.Logf("%v: exit code %d after %v\n%s", command, r.code, r.took.Round(time.Millisecond), out)
	return r
}

// cleanEnv is the environment without what belongs to a job.
func cleanEnv() (env []string) {
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); !strings.HasPrefix(name, "IBCONDUIT_") && !strings.HasPrefix(name, "PMI") &&
			!strings.HasPrefix(name, "SLURM_") && !strings.HasPrefix(name, "OMPI_") {
			env = append(env, kv)
		}
	}
	return env
}

// want checks the exit code and what was printed.
func (r result) want(t *testing.T, code int, words ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, want %d", r.code, code)
	}
	for _, w := range words {
		if !strings.Contains(r.out, w) {
			t.Errorf("no %q in the output", w)
		}
	}
}

func self(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

// programs are the example hello, ibbench and ibrun: programs that no test is.
var programs = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "launchertest")
	if err != nil {
		return "", err
	}
	out, err := exec.Command("go", "build", "-buildvcs=false", "-o", dir, "../../examples/hello", "../../cmd/ibbench", "../../cmd/ibrun").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	built = dir
	return dir, nil
})

var built string // the directory of the programs

func program(t *testing.T, name string) string {
	t.Helper()
	dir, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

func helloProgram(t *testing.T) string { return program(t, "hello") }

// greeting is what a rank of hello prints.
func greeting(rank, size int) string {
	return fmt.Sprintf("rank %d of %d: my left neighbour is %d; %d were here", rank, size, (rank+size-1)%size, size)
}
