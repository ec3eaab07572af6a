//go:build amfault

package am

// planted is what is wrong with this build.
var planted = noFault
