//go:build debug

package regcache

// verifying: page frames are compared whenever the system allows.
const verifying = true
