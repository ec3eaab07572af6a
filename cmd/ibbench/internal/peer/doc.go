// Package peer runs the tools of linux-rdma/perftest, reads what they
// print, and sets their figures against ours.
//
// A round measures every case with perftest, a server and a client on this
// machine, and with two ranks of ours; the order alternates from round to round.
// Figures are medians over the rounds, ratios are taken within a round. A round
// in which ib_write_lat at 8 bytes is off its own median by half is thrown away
// and counted: another program had the cores.
//
// The tables that the tools print are read, not their --out_json: that of
// version 6.06 (Debian's 4.5) is not JSON, and its longer keys overwrite each
// other.
package peer
