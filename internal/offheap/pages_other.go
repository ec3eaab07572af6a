//go:build !linux

package offheap

func smallPages([]byte) {}
