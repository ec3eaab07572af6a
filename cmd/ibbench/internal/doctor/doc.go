// Package doctor finds out what of the conduit works on a machine, and what to
// do about the rest.
//
// Each check yields one line: ok, warn or fail, the finding, and the command
// that mends it on this distribution. A failure is what keeps a job from
// running at all. Without RDMA a job still runs over shared memory, hence that
// is a warning, unless Options.Fabric is "ibv". The exit code is 1 if anything
// failed, else 0.
//
// What can be tried is tried: memory is registered, a descriptor is passed
// through a socket, the clock is read. Nothing is changed for good.
package doctor
