// Command agent is the init of the Soft-RoCE VM. It is built into the initrd and is of no use
// elsewhere.
package main
