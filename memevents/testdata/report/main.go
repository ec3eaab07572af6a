// The program prints what the self-test found, and whether a range can be claimed.
package main

import (
	"fmt"

	"github.com/ibconduit/conduit/memevents"
)

func main() {
	fmt.Print(memevents.Status())
	w, err := memevents.NewWatcher(memevents.WatcherConfig{})
	if err != nil {
		fmt.Println("watcher:", err)
		return
	}
	defer w.Close()
	r, err := w.Claim(1<<40, 1<<40+1, 0, memevents.CalledFromC)
	if err != nil {
		fmt.Println("claim:", err)
		return
	}
	fmt.Println("claim: ok")
	w.Retire(r)
}
