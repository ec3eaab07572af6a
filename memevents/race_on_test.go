//go:build race && linux && cgo && (amd64 || arm64)

package memevents

const raceDetector = true
