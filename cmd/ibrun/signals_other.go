//go:build !unix

package main

import "os"

func forwarded() []os.Signal { return []os.Signal{os.Interrupt} }
