package launchertest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/proctest"
)

// ranksOf are what the ranks of role exchange print.
func ranksOf(n int, by string) (lines []string) {
	for r := range n {
		lines = append(lines, fmt.Sprintf("rank %d: of %d by %s, %d here", r, n, by, n))
	}
	return lines
}

// The nodes are one host to the ranks, so that they have shared memory with all others.
func TestSrunStartsAJob(t *testing.T) {
	c := slurm(t)
	for mpi, by := range map[string]string{"pmi2": "pmi1 (PMI_FD)", "pmix": "pmix (PMIX_RANK)"} {
		for nodes := 1; nodes <= 2; nodes++ {
			t.Run(fmt.Sprintf("%s on %d", mpi, nodes), func(t *testing.T) {
				args := []string{"--mpi=" + mpi, fmt.Sprintf("-N%d", nodes), fmt.Sprintf("-n%d", 2*nodes)}
				c.srun(t, "exchange", append(args, self(t))...).want(t, 0, ranksOf(2*nodes, by)...)
				r := c.srun(t, "", append(args, helloProgram(t))...)
				for rank := range 2 * nodes {
					r.want(t, 0, greeting(rank, 2*nodes))
				}
			})
		}
	}
}

// Without a plug-in the ranks meet on the first host of the step, and prove by munge or with a
// secret that they belong together.
func TestSrunWithoutAPlugInMeetsByItself(t *testing.T) {
	c := slurm(t)
	for nodes := 1; nodes <= 2; nodes++ {
		args := []string{"--mpi=none", fmt.Sprintf("-N%d", nodes), fmt.Sprintf("-n%d", 2*nodes)}
		c.srun(t, "exchange", append(args, self(t))...).want(t, 0, ranksOf(2*nodes, "tcp (SLURM_PROCID)")...)
		r := c.srun(t, "", append(args, helloProgram(t))...)
		r.want(t, 0, greeting(0, 2*nodes), greeting(2*nodes-1, 2*nodes))
	}
	srun := []string{filepath.Join(c.root, "usr/bin/srun"), "-O", "--mpi=none", "-N2", "-n2", self(t)}
	noMunge := c.env(roleVar+"=exchange", "PATH=/nowhere")
	run(t, append(noMunge, "IBCONDUIT_SECRET=0123456789abcdef0123456789abcdef"), srun...).want(t, 0, ranksOf(2, "tcp (SLURM_PROCID)")...)
	r := run(t, noMunge, srun...)
	r.want(t, exitJoin, "munge cannot prove whose they are", "export IBCONDUIT_SECRET=$(openssl rand -hex 32)")
	if strings.Contains(r.out, "no rank 0 at") {
		t.Error("a rank dialled")
	}

	r = c.srun(t, "barrier:1:kill", "--mpi=none", "-N2", "-n3", self(t))
	r.want(t, r.code, "rank 0: Barrier: bootstrap: rank 1 (", "rank 2: Barrier: bootstrap: rank 1 (", "went away")
	r = c.srun(t, "barrier:1:abort", "--mpi=none", "-N2", "-n3", self(t))
	r.want(t, r.code, "rank 0: Barrier: bootstrap: rank 1 (", "aborted the job with code 7: told to")

	r = run(t, c.env(roleVar+"=exchange", "IBCONDUIT_LIBPMIX=/nowhere/libpmix.so"), filepath.Join(c.root, "usr/bin/srun"), "-O", "--mpi=pmix", "-N2", "-n2", self(t))
	r.want(t, 0, ranksOf(2, "tcp (SLURM_PROCID)")...)
}

// A rank that ends badly: with -K1 srun ends the step, and Abort does, under PMIx everything does.
// Without, under pmi2, the others' barrier waits for its context. Slurm's code is that of the rank,
// or of the signal to the others.
func TestSrunAndRanksThatEndBadly(t *testing.T) {
	c := slurm(t)
	for _, x := range []struct{ args, how, words string }{
		{"-K1 --mpi=pmi2", "3", "task 1: Exited with exit code 3"},
		{"-K1 --mpi=pmi2", "kill", "task 1: Killed"},
		{"--mpi=pmi2", "abort", "rank 1: abort with code 7: told to"},
		{"--mpi=pmi2", "3", "rank 0: bootstrap: PMI barrier: not all 3 ranks within"},
		{"-K1 --mpi=pmix", "3", "task 1: Exited with exit code 3"},
		{"--mpi=pmix", "kill", "task 1: Killed"},
		{"--mpi=pmix", "abort", "rank 1: abort with code 7: told to"},
	} {
		t.Run(x.args+" "+x.how, func(t *testing.T) {
			r := c.srun(t, "barrier:1:"+x.how, append(strings.Fields(x.args), "-N2", "-n3", self(t))...)
			if !slices.Contains([]int{3, 7, exitError, 128 + 9, 128 + 15}, r.code) {
				t.Errorf("exit code %d", r.code)
			}
			r.want(t, r.code, x.words)
		})
	}
}

func TestScancelReachesAllRanks(t *testing.T) {
	c := slurm(t)
	r := run(t, c.env(roleVar+"=wait", "OUT="+filepath.Join(t.TempDir(), "out")), "sh", "-c", `
		srun -O -J waiting --mpi=pmi2 -N2 -n2 "$0" >"$OUT" 2>&1 &
		for i in $(seq 200); do [ "$(grep -c waits "$OUT")" = 2 ] && break; sleep .1; done
		scancel --name=waiting
		wait $!
		code=$?
		cat "$OUT"
		exit $code`, self(t))
	r.want(t, 0, "rank 0: terminated", "rank 1: terminated", "CANCELLED")
}

// SIGTERM, and KillWait later SIGKILL (slurm.conf(5)): ranks that do not listen end too.
func TestScancelEndsRanksThatAreDeaf(t *testing.T) {
	c := slurm(t)
	r := run(t, c.env(roleVar+"=deaf", "OUT="+filepath.Join(t.TempDir(), "out")), "sh", "-c", `
		srun -O -J deaf --mpi=pmi2 -N2 -n2 "$0" >"$OUT" 2>&1 &
		for i in $(seq 200); do [ "$(grep -c waits "$OUT")" = 2 ] && break; sleep .1; done
		scancel --name=deaf
		wait $!
		for p in $(sed -n 's/.*waits, process //p' "$OUT"); do
			for i in $(seq 200); do kill -0 $p 2>/dev/null || { echo "$p is gone"; break; }; sleep .1; done
		done
		cat "$OUT"`, self(t))
	r.want(t, 0, "CANCELLED")
	if strings.Count(r.out, "is gone") != 2 || strings.Contains(r.out, "deadline") {
		t.Error("a rank is left, or ended by itself")
	}
}

// The job has run beside the tests before this one.
func TestTheTimeLimitOfABatchJob(t *testing.T) {
	t.Parallel()
	c := slurm(t)
	state, out := "", []byte(nil)
	for deadline := time.Now().Add(3 * time.Minute); !strings.Contains(state, " JobState=TIMEOUT "); time.Sleep(time.Second / 2) {
		if time.Now().After(deadline) {
			t.Fatalf("%s\n%s", state, out)
		}
		cmd := exec.Command(filepath.Join(c.root, "usr/bin/scontrol"), "show", "job", "-o", c.limited)
		cmd.Env = append(cleanEnv(), c.env()...)
		b, err := cmd.CombinedOutput()
		if state = string(b); err != nil {
			t.Fatalf("%v: %s", err, state)
		}
		out, _ = os.ReadFile(filepath.Join(c.dir, limitedOut))
	}
	r := result{out: string(out)}
	r.want(t, 0, "DUE TO TIME LIMIT", "rank 0: terminated", "rank 2: terminated")
	_, text, _ := strings.Cut(r.out, "rank 1: waits, process ")
	pid, err := strconv.Atoi(strings.Fields(text + " none")[0])
	if err != nil {
		t.Fatal(err)
	}
	proctest.Gone(t, pid)
	if t.Failed() {
		t.Logf("%s\n%s", state, out)
	}
}

const limitedOut = "limited.out"

// limit starts a job with Slurm's shortest time limit, a minute; Slurm looks every half a minute.
// One of its ranks is deaf to what Slurm asks first.
func (c *cluster) limit() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command("timeout", "30", filepath.Join(c.root, "usr/bin/sbatch"), "--parsable", "-O", "-t1", "-N2", "-n3", "-o", filepath.Join(c.dir, limitedOut))
	cmd.Stdin = strings.NewReader("#!/bin/sh\nsrun -K1 --mpi=pmi2 " + self + "\n")
	cmd.Env = append(cleanEnv(), c.env(roleVar+"=wait:1:deaf")...)
	out, err := cmd.CombinedOutput()
	if c.limited = strings.TrimSpace(string(out)); err != nil {
		return fmt.Errorf("%v: %w\n%s", cmd, err, out)
	}
	return nil
}

// batch runs a script by sbatch and returns what it wrote.
func (c *cluster) batch(t *testing.T, role, script string, args ...string) result {
	t.Helper()
	dir := t.TempDir()
	file, out := filepath.Join(dir, "job.sh"), filepath.Join(dir, "out")
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	command := append([]string{filepath.Join(c.root, "usr/bin/sbatch"), "-O", "--wait", "-o", out}, args...)
	r := run(t, c.env(roleVar+"="+role), append(command, file)...)
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	r.out = string(b)
	t.Logf("the script wrote:\n%s", b)
	return r
}

// sbatch looks for the end of a job every few seconds only: the scripts run at the same time.
func TestBatchScripts(t *testing.T) {
	c := slurm(t)
	started := "start it with: srun -K1 --mpi=pmi2 " + helloProgram(t)
	for name, x := range map[string]struct {
		role, script, size string
		code               int
		words              []string
	}{
		"srun":                {"exchange", "srun -K1 --mpi=pmi2 " + self(t), "-N2 -n4", 0, ranksOf(4, "pmi1 (PMI_FD)")},
		"no srun":             {"", helloProgram(t), "-n4", 1, []string{"SLURM_NTASKS=4", started}},
		"no srun, two nodes":  {"", helloProgram(t), "-N2", 1, []string{started}},
		"no srun, one task":   {"", helloProgram(t), "-N1 -n1", 0, []string{greeting(0, 1)}},
		"no srun, asked for":  {"", "IBCONDUIT_BOOTSTRAP=self " + helloProgram(t), "-n4", 0, []string{greeting(0, 1)}},
		"from the second on":  {"exchange", "srun --mpi=none -r1 -N1 -n2 " + self(t), "-N2 -n4", 0, ranksOf(2, "tcp (SLURM_PROCID)")},
		"the same, with PMIx": {"exchange", "srun --mpi=pmix -r1 -N1 -n2 " + self(t), "-N2 -n4", 0, ranksOf(2, "pmix (PMIX_RANK)")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.batch(t, x.role, x.script, strings.Fields(x.size)...).want(t, x.code, x.words...)
		})
	}
}
