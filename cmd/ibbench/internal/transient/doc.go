// Package transient runs kernels of bench with limited memory: each run is a job of fresh processes
// on this machine, each in a memory group of its own.
package transient
