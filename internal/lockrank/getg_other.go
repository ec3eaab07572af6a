//go:build !amd64 && !arm64

package lockrank

import (
	"bytes"
	"runtime"
	"strconv"
)

// getg returns the goroutine's number, slowly: the figures of a big lock are not
// worth much here.
func getg() uintptr {
	var buf [40]byte
	digits, _, _ := bytes.Cut(bytes.TrimPrefix(buf[:runtime.Stack(buf[:], false)], []byte("goroutine ")), []byte(" "))
	id, _ := strconv.ParseUint(string(digits), 10, 64)
	return uintptr(id)
}
