package verbs

import (
	"errors"
	"strings"
	"syscall"
	"testing"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// holds checks that an error's text has all of these.
func holds(t testing.TB, err error, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q lacks %q", err, text)
		}
	}
}

func TestErrorSaysCallObjectDeviceCauseAndRemedy(t *testing.T) {
	err := error(&Error{Op: "ibv_reg_mr", Device: "rxe0", Object: "PD", Errno: syscall.ENOMEM, Detail: "1 GiB asked", Remedy: "ulimit -l unlimited"})
	if got, want := err.Error(), "verbs: ibv_reg_mr on PD of rxe0: cannot allocate memory: 1 GiB asked (ulimit -l unlimited)"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if !errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.EINVAL) {
		t.Error("errors.Is must find the errno and no other")
	}
	err = &Error{Op: "close", Errno: syscall.EBUSY, Err: ErrBusy}
	if !errors.Is(err, ErrBusy) || !errors.Is(err, syscall.EBUSY) {
		t.Error("errors.Is must find sentinel and errno")
	}
}

func TestPostErrorNamesQueueSlotAndRequest(t *testing.T) {
	err := error(&PostError{Device: "rxe0", Queue: "QP 0x11", Batch: 2, Slot: 5, WRID: 0x77, Errno: syscall.ENOMEM, Posted: 9})
	holds(t, err, "QP 0x11 of rxe0", "slot 5", "sub-chain 2", "0x77", "9 were posted", "queue is full")
	if !errors.Is(err, syscall.ENOMEM) {
		t.Error("errno lost")
	}
}
