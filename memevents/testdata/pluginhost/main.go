// Loads a plugin and prints what it found.
package main

import (
	"fmt"
	"os"
	"plugin"
)

func main() {
	p, err := plugin.Open(os.Args[1])
	if err == nil {
		var f plugin.Symbol
		if f, err = p.Lookup("Report"); err == nil {
			fmt.Print(f.(func() string)())
		}
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}
