// Package archtest holds the architecture by tests: which package may import
// which, where cgo may stand, that no C type leaves a package, which modules a
// package may need, that the documents name every environment variable and
// no file or name that does not exist, and that types, files, test names and
// comment lines stay small.
//
// It reads the sources rather than asking the go command, so that files of every
// build tag and system are held to the rules. Each rule is a function from the
// tree to its violations, and each is tried on a planted tree in which it must
// find one.
package archtest
