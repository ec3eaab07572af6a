//go:build !debug

package regcache

const verifying = false
