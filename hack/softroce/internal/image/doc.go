// Package image makes what a VM boots: the distribution's kernel, uncompressed, and an initrd with
// the agent and the modules that Soft-RoCE needs. Nothing of it is installed on the host.
//
// Folder (build/softroce in the repository unless IBCONDUIT_VM_DIR says otherwise):
//
//	bin/                   vm and agent, built by the launcher
//	deb/                   packages as downloaded
//	image/KEY/             vmlinux, initrd.cpio, image.json; KEY is a hash of every input
//	log/RUN/               console, kernel log and qemu's messages of the last runs
//	lock, slot.N           taken with flock(2)
package image
