//go:build !unix

package main

import "os"

var forwarded = []os.Signal{os.Interrupt}
