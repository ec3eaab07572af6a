// Go as a library of a C program.
package main

import "C"

import (
	"fmt"

	"github.com/ibconduit/conduit/memevents"
)

var (
	w   *memevents.Watcher
	ref memevents.Ref
)

//export IbcWatch
func IbcWatch(p, n uintptr) bool {
	fmt.Print(memevents.Status())
	var err error
	if w, err = memevents.NewWatcher(memevents.WatcherConfig{}); err != nil {
		fmt.Println(err)
		return false
	}
	if ref, err = w.Claim(p, p+n, 0, memevents.CalledFromC); err != nil {
		_, needless := w.Claim(p, p+n, 0, 0)
		fmt.Printf("%v; a claim that needs nothing: %v\n", err, needless)
		return false
	}
	return w.Publish(ref)
}

//export IbcValid
func IbcValid() bool { return ref.Valid() }

func main() {}
