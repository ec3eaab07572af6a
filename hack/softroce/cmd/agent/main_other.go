//go:build !linux

package main

import "log"

func main() { log.Fatal("agent: Linux only") }
