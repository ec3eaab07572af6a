//go:build !amfault

package am

// planted is what is wrong with this build: nothing. Tests are run with the tag amfault,
// which lets them choose.
const planted = noFault
