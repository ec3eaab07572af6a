package verbs

import (
	"errors"
	"strings"
	"syscall"
	"testing"
)

func TestCompletionErrorUnwrapsToStatusAndErrno(t *testing.T) {
	wc := WC{WRID: 0x2a, Status: StatusRemoteAccess, QPNum: 0x11, VendorErr: 0x88}
	err := wc.Err()
	var e *WCError
	if !errors.As(err, &e) || e.WRID != 0x2a || e.QPNum != 0x11 || e.VendorErr != 0x88 {
		t.Fatalf("%#v", err)
	}
	if !errors.Is(err, StatusRemoteAccess) || !errors.Is(err, syscall.EACCES) || errors.Is(err, StatusFlushed) {
		t.Errorf("errors.Is: %v", err)
	}
	holds(t, err, "0x2a", "QP 0x11", "rkey", "0x88")
	if err := (&WC{}).Err(); err != nil {
		t.Errorf("success: %v", err)
	}
}

func TestEveryStatusHasTextAndErrno(t *testing.T) {
	for s := StatusLocalLength; s <= StatusTMRendezvous; s++ {
		if strings.HasPrefix(s.Error(), "completion status") || s.Error() == "" || s.Errno() == 0 {
			t.Errorf("status %d: %q, errno %v", s, s.Error(), s.Errno())
		}
	}
	if s := WCStatus(99); s.Error() != "completion status 99" || s.Errno() != syscall.EIO {
		t.Errorf("unknown status: %q, %v", s.Error(), s.Errno())
	}
}
