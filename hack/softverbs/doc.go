// Package softverbs runs programs with a verbs device in user space: a library that is preloaded
// before libibverbs, and carries requests out between processes of this host by shared memory. It
// needs neither an RDMA device nor a VM. Tests run over it natively, with the race detector too,
// and faults happen on demand.
//
//	cmd, err := softverbs.Command(ctx, "./program")
//	cmd.Env = append(cmd.Environ(), "SOFTVERBS_FAULTS=cut=100,node=1")
//
// README.md describes the device; hack/softverbs/run is the same for the shell and for go test
// -exec. Nothing else of the project uses the device: it does not choose itself.
package softverbs
