package jobtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ibconduit/conduit"
	"github.com/ibconduit/conduit/internal/hydratest"
	"github.com/ibconduit/conduit/internal/launch"
	"github.com/ibconduit/conduit/internal/proctest"
)

// rankMain is the life of this binary as a rank: it joins the job that its
// launcher's environment describes, does what is asked for, and returns the exit
// code.
func rankMain(what string) int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	rank := "?"
	err := func() error {
		if f := prologues[what]; f != nil && os.Getenv("IBCONDUIT_RANK") == "1" {
			if err := f(ctx); err != nil {
				return err
			}
		}
		size, err := strconv.ParseInt(os.Getenv("IBCONDUIT_TEST_SEGMENT"), 10, 64)
		if err != nil {
			size = 1 << 20
		}
		closing, err := time.ParseDuration(os.Getenv("IBCONDUIT_TEST_CLOSE"))
		if err != nil {
			closing = 3 * time.Second
		}
		cfg := conduit.Config{SegmentSize: size, CloseTimeout: closing}
		if f := configures[what]; f != nil {
			f(&cfg)
		}
		j, err := conduit.Join(ctx, cfg)
		if err != nil {
			return err
		}
		rank = strconv.Itoa(j.Rank())
		return errors.Join(programs[what](ctx, j), j.Close())
	}()
	if err != nil {
		fmt.Printf("rank %s: error: %v\n", rank, err)
		return 1
	}
	return 0
}

var programs = map[string]func(ctx context.Context, j *conduit.Job) error{
	"exchange":   exchangeProgram,
	"die-before": func(ctx context.Context, j *conduit.Job) error { return j.Barrier(ctx) },
	"strangers":  exchangeProgram,
	"deaths":     deathsProgram,
}

// configures are what programs change of the configuration.
var configures = map[string]func(*conduit.Config){"deaths": configureDeaths}

// prologues are what rank 1 does before it joins.
var prologues = map[string]func(ctx context.Context) error{
	"die-before": func(context.Context) error { os.Exit(7); return nil },
	"strangers":  callAsStrangers,
}

// strangers stay connected as long as the process lives.
var strangers []net.Conn

// callAsStrangers has strangers connect to the rendezvous, say something or nothing, and stay.
func callAsStrangers(ctx context.Context) error {
	for _, say := range []string{"", "GET / HTTP/1.0\r\n\r\n", strings.Repeat("\x16\x03\x01", 40000)} {
		var c net.Conn
		err := until(ctx, "rank 0 listens", func() (ok bool) {
			var err error
			c, err = net.DialTimeout("tcp", os.Getenv("IBCONDUIT_ADDR"), time.Second)
			return err == nil
		})
		if err != nil {
			return err
		}
		_, _ = io.WriteString(c, say) // rank 0 may hang up before it has read all
		strangers = append(strangers, c)
	}
	return nil
}

// exchangeProgram prints on rank 0 what every rank found, from content that
// every rank wrote and atomics that every rank did.
func exchangeProgram(ctx context.Context, j *conduit.Job) error {
	return withWorker(j, func(w *conduit.Worker) error {
		n := j.Size()
		block := make([]byte, 5000)
		pattern(block, j.Rank())
		for r := range n {
			if err := conduit.PutSlice(w, conduit.At[byte](r, uint64(8192*j.Rank()+64)), block); err != nil {
				return err
			}
			if _, err := conduit.FetchAdd(w, conduit.At[int64](r, 0), int64(j.Rank()+1)); err != nil {
				return err
			}
		}
		if err := j.Barrier(ctx); err != nil {
			return err
		}
		sum := 0
		for r := range n {
			if err := samePattern(j.Segment()[8192*r+64:][:5000], r); err != nil {
				return fmt.Errorf("block of rank %d: %w", r, err)
			}
			v, err := conduit.Get(w, conduit.At[int64](r, 0))
			if err != nil {
				return err
			}
			sum += int(v)
		}
		all, err := conduit.AllGatherValue(ctx, j, sum)
		if err != nil {
			return err
		}
		if j.Rank() == 0 {
			fmt.Printf("size %d sums %v\n", n, all)
		}
		return j.Barrier(ctx)
	})
}

// output collects what ranks print.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// rankEnv is the environment of a rank that runs a program: this process's, with
// no launcher in it.
func rankEnv(program string, cfg conduit.Config, more ...string) []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "IBCONDUIT_") && !strings.HasPrefix(kv, "PMI") && !strings.HasPrefix(kv, "SLURM_") {
			env = append(env, kv)
		}
	}
	env = append(env, "IBCONDUIT_TEST_RANK="+program, "IBCONDUIT_FABRIC="+cfg.Fabric, "IBCONDUIT_DEVICE="+cfg.Device)
	return append(env, more...)
}

// endByThemselves is a Grace for ranks that the launcher need not end, however slow the machine is.
const endByThemselves = 40 * time.Second

// launched runs a program as n ranks of the own launcher.
func launched(t *testing.T, n int, env []string) (string, int) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out output
	code, err := launch.Run(testContext(t), launch.Config{N: n, Path: exe, Env: env, Stdout: &out, Stderr: &out, Grace: endByThemselves})
	if err != nil {
		t.Fatalf("launch: %v\n%s", err, out.String())
	}
	return out.String(), code
}

// The same program prints the same under every launcher.
func TestEveryLauncherGivesTheSameResults(t *testing.T) {
	const want = "size 4 sums [40 40 40 40]\n"
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	fabrics(t, func(t *testing.T, cfg conduit.Config) {
		t.Run("own launcher", func(t *testing.T) {
			if out, code := launched(t, 4, rankEnv("exchange", cfg)); code != 0 || out != want {
				t.Errorf("exit code %d, output:\n%s", code, out)
			}
		})
		t.Run("mpiexec.hydra", func(t *testing.T) {
			hydra := hydratest.Mpiexec(t)
			for _, args := range [][]string{{"-n", "4", exe}, {"-pmi-port", "-n", "4", exe}} {
				cmd := exec.CommandContext(testContext(t), hydra, args...)
				cmd.Env = rankEnv("exchange", cfg)
				if out, err := cmd.CombinedOutput(); err != nil || string(out) != want {
					t.Errorf("%v: %v, output:\n%s", args, err, out)
				}
			}
		})
		t.Run("TCP by environment", func(t *testing.T) {
			outs, errs := tcpRanks(t, 4, "exchange", cfg)
			for r := range outs {
				if errs[r] != nil {
					t.Errorf("rank %d: %v\n%s", r, errs[r], outs[r])
				}
			}
			if outs[0] != want {
				t.Errorf("rank 0 printed:\n%s", outs[0])
			}
		})
	})
}

// tcpRanks starts the ranks as is done without a launcher, and returns
// what each printed.
func tcpRanks(t *testing.T, n int, program string, cfg conduit.Config, more ...string) ([]string, []error) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(strings.Repeat("5ec4e7", 8)), 0o600); err != nil {
		t.Fatal(err)
	}
	addr := proctest.HeldAddr(t)
	outs, errs := make([]string, n), make([]error, n)
	var ranks sync.WaitGroup
	for r := range n {
		cmd := exec.CommandContext(testContext(t), exe)
		cmd.Env = rankEnv(program, cfg, "IBCONDUIT_RANK="+strconv.Itoa(r), "IBCONDUIT_SIZE="+strconv.Itoa(n),
			"IBCONDUIT_ADDR="+addr, "IBCONDUIT_SECRET_FILE="+secret, "IBCONDUIT_JOIN_TIMEOUT=20s")
		cmd.Env = append(cmd.Env, more...)
		ranks.Go(func() {
			out, err := cmd.CombinedOutput()
			outs[r], errs[r] = string(out), err
		})
	}
	ranks.Wait()
	return outs, errs
}

// Without a launcher that sees the death, the others wait for the join's time
// and then name the missing one.
func TestARankThatDiesBeforeJoinIsNamed(t *testing.T) {
	fabrics(t, func(t *testing.T, cfg conduit.Config) {
		var outs []string
		var errs []error
		for _, patience := range []string{"3s", "12s", "40s"} { // a busy machine may need more
			if outs, errs = tcpRanks(t, 3, "die-before", cfg, "IBCONDUIT_JOIN_TIMEOUT="+patience); strings.Contains(outs[0], "2 of 3 ranks arrived") {
				break
			}
		}
		for _, r := range []int{0, 2} {
			if errs[r] == nil || !strings.Contains(outs[r], "missing rank 1") {
				t.Errorf("rank %d: %v, and did not say that rank 1 is missing:\n%s", r, errs[r], outs[r])
			}
		}
	})
}

func TestTheLauncherEndsAJobThatMissesARank(t *testing.T) {
	var said output
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	code, err := launch.Run(testContext(t), launch.Config{N: 3, Path: exe, Env: rankEnv("die-before", conduit.Config{Fabric: conduit.FabricSHM}),
		Stdout: &said, Stderr: &said, Grace: time.Second, Report: func(m string) { fmt.Fprintln(&said, m) }})
	if err != nil || code != 7 {
		t.Errorf("exit code %d, %v; want the first failing rank's 7", code, err)
	}
	if !strings.Contains(said.String(), "rank 1 (pid") || !strings.Contains(said.String(), "exit status 7") {
		t.Errorf("the launcher does not say which rank died of what:\n%s", said.String())
	}
}

// A stranger at the rendezvous port neither joins nor disturbs.
func TestAStrangerAtTheRendezvousPortIsIgnored(t *testing.T) {
	fabrics(t, func(t *testing.T, cfg conduit.Config) {
		outs, errs := tcpRanks(t, 3, "strangers", cfg)
		for r, err := range errs {
			if err != nil {
				t.Errorf("rank %d: %v\n%s", r, err, outs[r])
			}
		}
		if !strings.HasPrefix(outs[0], "size 3 sums [18 18 18]") {
			t.Errorf("rank 0 printed:\n%s", outs[0])
		}
	})
}
