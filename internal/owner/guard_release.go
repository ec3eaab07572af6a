//go:build !debug

package owner

// Checked reports whether guards check.
const Checked = false

// Guard is empty in this build.
type Guard struct{}

// Enter does nothing in this build.
func (g *Guard) Enter() error { return nil }

// Exit does nothing in this build.
func (g *Guard) Exit() {}
