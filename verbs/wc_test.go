package verbs

import (
	"errors"
	"fmt"
	"slices"
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
	unnamed := []WCStatus{3, 14, 15, 17, 18} // IBTA 1.4 vol. 1 §11.6.2: of reliable datagrams
	for s := StatusLocalLength; s <= StatusGeneral; s++ {
		if strings.HasPrefix(s.Error(), "completion status") != slices.Contains(unnamed, s) || s.Errno() == 0 {
			t.Errorf("status %d: %q, errno %v", s, s.Error(), s.Errno())
		}
	}
	for _, s := range append(unnamed, 99) {
		if s.Error() != fmt.Sprintf("completion status %d", uint32(s)) || s.Errno() != syscall.EIO {
			t.Errorf("unknown status: %q, %v", s.Error(), s.Errno())
		}
	}
}
