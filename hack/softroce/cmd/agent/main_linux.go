package main

import "github.com/ibconduit/conduit/hack/softroce/internal/guest"

func main() { guest.Main() }
