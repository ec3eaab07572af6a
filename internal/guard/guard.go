// Package guard calls functions of the program, which may fail in every way.
package guard

// Call calls f, and then next with what f panicked with. A function that ends its goroutine
// (runtime.Goexit, FailNow of a test) counts as one that panics.
func Call(f func(), next func(failure any)) {
	returned := false
	defer func() {
		v := recover()
		if v == nil && !returned {
			v = "it called runtime.Goexit"
		}
		next(v)
	}()
	f()
	returned = true
}
