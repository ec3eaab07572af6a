// A plugin that brings the package along.
package main

import "github.com/ibconduit/conduit/memevents"

func Report() string { return memevents.Status().String() }

func main() {}
