//go:build linux && cgo

package rdmatest

const verbsBuilt = true
