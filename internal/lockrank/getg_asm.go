//go:build amd64 || arm64

package lockrank

// getg returns the address of the runtime's g, which stands for the goroutine
// while that lives.
func getg() uintptr
