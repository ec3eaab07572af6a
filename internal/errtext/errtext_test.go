package errtext

import (
	"errors"
	"slices"
	"syscall"
	"testing"
)

func TestWhatIsNotThereIsLeftOut(t *testing.T) {
	cause := errors.New("full")
	var none error
	for want, got := range map[string]string{
		"head":                                Join("head", "", none, syscall.Errno(0), ""),
		"head (do this)":                      Join("head", "do this"),
		"head: full: on what (do this)":       Join("head", "do this", cause, syscall.Errno(0), "on what"),
		"head: on what: no such process":      Join("head", "", "on what", none, syscall.ESRCH),
		"head: full: operation not permitted": Join("head", "", cause, syscall.EPERM, ""),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for _, c := range []struct {
		err   error
		errno syscall.Errno
		want  []error
	}{
		{nil, 0, nil},
		{cause, 0, []error{cause}},
		{nil, syscall.EPERM, []error{syscall.EPERM}},
		{cause, syscall.EPERM, []error{cause, syscall.EPERM}},
	} {
		if got := Causes(c.err, c.errno); !slices.Equal(got, c.want) {
			t.Errorf("causes %v, want %v", got, c.want)
		}
	}
}

func TestOneOfAThingHasNoPlural(t *testing.T) {
	for n, want := range map[int]string{0: "0 ports", 1: "1 port", 2: "2 ports", -1: "-1 ports"} {
		if got := Count(n, "port"); got != want {
			t.Errorf("%d: %q", n, got)
		}
	}
}

func TestANounHasItsArticle(t *testing.T) {
	for noun, want := range map[string]string{"put": "a put", "all-gather": "an all-gather", "atomic": "an atomic", "": "a "} {
		if got := A(noun); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestForeignTextIsPrintable(t *testing.T) {
	for text, want := range map[string]string{"a\nb\x00c": "a b c", "\xffé\x1b[1m": "é [1m", "abcdefghijk": "abcdefgh", "": ""} {
		if got := Printable([]byte(text), 8); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
