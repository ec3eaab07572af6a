//go:build !unix

package main

import "os"

func forwarded() []os.Signal { return []os.Signal{os.Interrupt} }

func exit(code int) { os.Exit(code) }
