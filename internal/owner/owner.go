// Package owner detects two goroutines in an object that is made for one.
//
// With -tags debug a [Guard] is an atomic flag that is taken on entry and given
// back on exit; a second entry gets [ErrConcurrent]. Without the tag it is
// empty and its methods compile to nothing. A goroutine may hand the object to
// another between calls.
package owner

import "errors"

// ErrConcurrent says that two goroutines used a single-owner object at a time.
var ErrConcurrent = errors.New("used by two goroutines at a time: give each its own, or hand it over through a channel")
