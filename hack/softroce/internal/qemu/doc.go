// Package qemu starts and ends one virtual machine. A machine never outlives the process that
// started it: the kernel kills it when that process goes, however it goes.
package qemu
