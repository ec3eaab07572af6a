//go:build race || debug

package measure

const allocationsCount = false
