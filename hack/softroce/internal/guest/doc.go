// Package guest is the agent: the first and only process of the VM that is not a command of the
// user.
//
// It is the kernel's init. It loads the modules it finds in the initrd, opens the virtio-serial
// port, builds the world that the host describes (root, network, RDMA device), and runs commands
// until the host ends the machine.
package guest
