// Package softroce runs commands on machines that have a real RDMA stack, where the machine at hand
// has none.
//
// [Start] boots one or more VMs with the distribution's kernel, in which Soft-RoCE (rdma_rxe) makes
// a device rxe0. Each sees the files of this host, read-only under a layer in memory, so that a
// test binary runs in it where it is. Several are joined by links that can be cut, slowed and made
// lossy; a guest can be killed.
//
//	c, err := softroce.Start(ctx, softroce.Config{Hosts: 2})
//	defer c.Close()
//	err = c.Host(0).Command("ib_write_lat", "-R", "vm1").Run(ctx)
//	c.Cut(0, 1)
//
// No VM outlives the process. Nothing leaves the machine: frames travel from one emulator to
// another through socket pairs. The program hack/softroce/vm is this package for the shell; it is
// also what builds the image, once.
package softroce
