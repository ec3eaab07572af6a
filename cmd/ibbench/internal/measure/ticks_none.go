//go:build !linux || !(amd64 || arm64)

package measure

func ticks() uint64    { return 0 }
func countsTime() bool { return false }
func tickNS() uint64   { return 0 }
