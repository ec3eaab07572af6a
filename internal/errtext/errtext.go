// Package errtext puts the errors of the lower packages into words and into
// chains, so that they read alike.
package errtext

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"unicode"
)

// The errors that several packages name.
var (
	// ErrBusy means that something cannot be closed, or changed, while it is used.
	ErrBusy = errors.New("in use")
	// ErrNotSupported means that this build, system or device lacks the feature.
	ErrNotSupported = errors.New("not supported")
)

// Closed is the error of something closed, in words of its own; it matches os.ErrClosed.
type Closed string

func (e Closed) Error() string { return string(e) }

// Is matches os.ErrClosed.
func (Closed) Is(target error) bool { return target == os.ErrClosed }

// Join writes "head: part: part (remedy)". Empty parts, nil and errno 0 are left out.
func Join(head, remedy string, parts ...any) string {
	var b strings.Builder
	b.WriteString(head)
	for _, p := range parts {
		if p != nil && p != "" && p != syscall.Errno(0) {
			fmt.Fprintf(&b, ": %v", p)
		}
	}
	if remedy != "" {
		fmt.Fprintf(&b, " (%s)", remedy)
	}
	return b.String()
}

// Causes are what errors.Is and errors.As look into: a sentinel or cause, and an errno.
func Causes(err error, errno syscall.Errno) (causes []error) {
	if err != nil {
		causes = append(causes, err)
	}
	if errno != 0 {
		causes = append(causes, errno)
	}
	return causes
}

// Count writes a number of things: "1 port", "2 ports".
func Count[N ~int | ~int64 | ~uint64](n N, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return fmt.Sprintf("%d %ss", n, of)
}

// A is a noun with its indefinite article, for those that begin as they sound.
func A(noun any) string {
	s := fmt.Sprint(noun)
	if s != "" && strings.ContainsRune("aeiou", rune(s[0])) {
		return "an " + s
	}
	return "a " + s
}

// Printable is text of another process, which may be anything, for an error: the first bytes of it.
func Printable(b []byte, most int) string {
	return strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(string(b[:min(len(b), most)]), ""))
}
