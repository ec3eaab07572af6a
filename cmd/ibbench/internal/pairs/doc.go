// Package pairs finds, in a latency or a bandwidth of every pair of ranks, what is out of the
// ordinary: a slow link, a slow direction, a rank or a host that is slow with everyone, and a host
// whose port is set up in another way than the others'.
//
// Pairs are compared with others of their class: of the same network, and within a host or between
// two. Typical is what the best quarter of a class reaches: even of three ranks one of which is
// slow, a third of the pairs is as it should be. A pair is slow when it is worse by the factor that
// is asked for; where the best quarter itself differs, by so much more. A rank whose own best
// quarter is worse by half as much is slow with everyone: its links are no findings of their own.
package pairs
