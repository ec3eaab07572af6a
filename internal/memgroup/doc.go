// Package memgroup limits the memory of processes: it makes memory groups of the kernel (cgroups,
// of version 2 or 1), and swap space where the machine has none. Both need privileges; an error
// says which, and that a virtual machine has them.
package memgroup
