//go:build !linux

package regcache

func defaultMaxBytes() int64 { return 1 << 30 }
