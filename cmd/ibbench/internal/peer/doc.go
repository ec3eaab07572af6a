// Package peer runs other programs that measure what we do, reads what they
// print, and sets their figures against ours: the tools of linux-rdma/perftest,
// UCX's ucx_perftest, the OSU micro-benchmarks (peers.go), and a program of its
// own for the collective operations of Open MPI (mpi.go).
//
// A round measures every case with the peer, two processes on this machine, and
// with two ranks of ours; the order alternates from round to round. Figures are
// medians over the rounds, ratios are taken within a round. A round in which one
// case of the peer (of perftest ib_write_lat at 8 bytes) is off its own median by
// half is thrown away and counted: another program had the cores.
//
// The tables that perftest's tools print are read, not their --out_json: that of
// version 6.06 (Debian's 4.5) is not JSON, and its longer keys overwrite each
// other.
package peer
