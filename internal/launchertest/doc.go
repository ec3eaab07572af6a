// Package launchertest runs ranks under the launchers that users have: Open MPI's mpirun, and Slurm
// on a cluster of two nodes that the tests start on this host. Its tests run once, in a stage of
// their own (hack/test.sh launchers): the race detector and the checks of the debug build have
// nothing to find in what others wrote.
package launchertest
