package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestSecretIsReadFromPipeThenFileThenVariable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("secret from the file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	vars := []string{"IBCONDUIT_SECRET", "secret from the environment"}
	check := func(want string) {
		t.Helper()
		got, err := readSecret(env(vars...))
		if err != nil || string(got) != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
	check("secret from the environment")
	vars = append(vars, "IBCONDUIT_SECRET_FILE", file)
	check("secret from the file")
	fd := pipeWith(t, "secret from the pipe")
	vars = append(vars, "IBCONDUIT_SECRET_FD", strconv.Itoa(fd))
	check("secret from the pipe")
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != unix.EBADF {
		t.Errorf("the pipe is still open for children: %v", err)
	}
}

// pipeWith returns the number of a pipe's reading end, which no os.File owns.
func pipeWith(t *testing.T, text string) int {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], 0); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(p[1], []byte(text)); err != nil {
		t.Fatal(err)
	}
	unix.Close(p[1])
	return p[0]
}

// A launcher may leave its pipe open, and a path may lead to anything.
func TestReadingASecretIsBounded(t *testing.T) {
	blocking := func() int { // a pipe that its writer keeps open and silent, without deadlines or an os.File
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(p[1]) })
		_, _ = unix.Write(p[1], []byte("the beginning of a secret"))
		return p[0]
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	silent := blocking()
	defer unix.Close(silent)
	for what, c := range map[string]struct {
		name, value string
		want        string
	}{
		"a descriptor whose writer is silent": {"IBCONDUIT_SECRET_FD", strconv.Itoa(blocking()), os.ErrDeadlineExceeded.Error()},
		"a path to a pipe that is not closed": {"IBCONDUIT_SECRET_FILE", fmt.Sprintf("/proc/self/fd/%d", silent), os.ErrDeadlineExceeded.Error()},
		"a fifo without a writer":             {"IBCONDUIT_SECRET_FILE", fifo, "has 0 bytes"},
		"a device without an end":             {"IBCONDUIT_SECRET_FILE", "/dev/zero", "has more than 65536 bytes"},
	} {
		timeout := time.Minute
		if c.want == os.ErrDeadlineExceeded.Error() {
			timeout = 50 * time.Millisecond
		}
		_, err := readSecretWithin(env(c.name, c.value), timeout)
		if err == nil || !strings.Contains(err.Error(), c.name) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %s and %q", what, err, c.name, c.want)
		}
	}
}

// A number in the environment outlives the file it meant: the tag keeps us
// from reading, and closing, another file.
func TestDescriptorThatWasUsedAgainIsNotTaken(t *testing.T) {
	first := pipeWith(t, "the launcher's")
	var st unix.Stat_t
	if err := unix.Fstat(first, &st); err != nil {
		t.Fatal(err)
	}
	tag := strconv.Itoa(first) + ":" + strconv.Itoa(int(st.Ino))
	second := pipeWith(t, "the other file's text")
	if err := unix.Dup2(second, first); err != nil { // the number now means the second pipe
		t.Fatal(err)
	}
	unix.Close(second)
	defer unix.Close(first)
	if s, err := readSecret(env("IBCONDUIT_SECRET_FD", tag)); !errors.Is(err, unix.EBADF) {
		t.Errorf("read %q, %v", s, err)
	}
	b := make([]byte, 16)
	if n, err := unix.Read(first, b); err != nil || string(b[:n]) != "the other file's" {
		t.Errorf("the other file was touched: %q, %v", b[:n], err)
	}
}

func TestInheritedPMIDescriptorsAreClosedOnExec(t *testing.T) {
	fd := pipeWith(t, "")
	defer unix.Close(fd)
	control := pipeWith(t, "")
	defer unix.Close(control)
	if _, err := detect(env("PMI_FD", strconv.Itoa(fd), "PMI_RANK", "0", "PMI_SIZE", "1", "HYDI_CONTROL_FD", strconv.Itoa(control)), ""); err != nil {
		t.Fatal(err)
	}
	for _, fd := range []int{fd, control} {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor %d: flags %d, %v", fd, flags, err)
		}
	}
}

func TestTwoJobsOfAProcessHaveOwnEnvironments(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	rvs := append(tcpRanks(t, 2, nil), tcpRanks(t, 2, nil)...)
	all, errs := make([]Bootstrap, 4), make([]error, 4)
	done := make(chan int)
	for i, rv := range rvs {
		vars := []string{
			"IBCONDUIT_RANK", strconv.Itoa(rv.rank), "IBCONDUIT_SIZE", "2", "IBCONDUIT_ADDR", rv.addr,
			"IBCONDUIT_SECRET", testSecret, "IBCONDUIT_JOB", strconv.Itoa(i / 2),
		}
		if rv.rank == 0 {
			fd, err := unix.Dup(int(rv.listener.Fd()))
			rv.listener.Close()
			if err != nil {
				t.Fatal(err)
			}
			vars = append(vars, "IBCONDUIT_LISTEN_FD", strconv.Itoa(fd))
		}
		go func() {
			all[i], errs[i] = New(ctx, Options{Lookup: env(vars...), Log: quiet})
			done <- i
		}()
	}
	for range all {
		<-done
	}
	defer closeAll(all)
	noErrors(t, errs)
	noErrors(t, onAll(all, func(b Bootstrap) error { return checkExchanges(ctx, b) }))
	if all[0].JobID() != "0" || all[3].JobID() != "1" || all[0].Name() != "launch (IBCONDUIT_RANK)" {
		t.Errorf("%q %q %q", all[0].JobID(), all[3].JobID(), all[0].Name())
	}
}

// A second job of the process must not close, or read, what has the number by then.
func TestAnInheritedDescriptorHasOneOwner(t *testing.T) {
	vars := env("IBCONDUIT_ENDED_FD", strconv.Itoa(pipeWith(t, "")))
	first, second := openEnded(vars), openEnded(vars)
	defer first.close()
	if first == nil || second != nil {
		t.Errorf("the first job has the list: %v, the second: %v", first != nil, second != nil)
	}
}
