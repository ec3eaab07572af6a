//go:build !debug

package am_test

const checked = false
