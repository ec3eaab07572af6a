// Package fencecheck finds missing fences: accesses to the same bytes by two ranks, one of them
// writing, which no release and acquire order. It is for programs that are right under the memory
// model of package cache, whether a cache is in use or not.
//
// A [Checker] is told of all that the ranks of one process do: accesses ([Worker.Read] and its
// kind), releases and acquires, and what carries word from one rank to another: words that are
// waited for, atomics, collective operations, messages. It finds a pair of accesses that are not in
// order whenever both were told, however they came to lie in time: a race need not lose data to be
// found. What a schedule has put in order, by a later word for instance, is in order.
//
// # Clocks
//
// Each worker is an actor whose writes have an epoch, which its next release makes visible, and one
// more for what an atomic does not deliver, but only a release; each rank is another, for what is
// at its target at once: stores of the rank to its own memory, and atomics whose value has come.
// Who waits for a word, or gets the value of an atomic, knows that the word has arrived, released
// or not, and tells others. Reads have an epoch of their rank. A clock says up to which epoch one
// knows of each of them. Word that leaves a rank takes along what its workers have acquired and
// released, and what it was told is known only after the next acquire, as in C11 (§7.17.3). A
// write, an atomic, and a load of the rank's own memory need no acquire before, as they read no
// copy; what is sent on afterwards does. Workers of one rank are not checked against each other:
// what orders them is the program's own, and what one has released all of the rank take along.
//
// Each byte has its last write, and the reads since then that are not ordered with each other. An
// access is checked against them when it is told.
//
// # What it does not see
//
// Loads and stores of a rank's own memory are not told by themselves. A message counts as sent when
// its handler begins, a put to a word that is waited for when it is called: what is done between
// that and the true time goes unnoticed. Word that passes between ranks by ways of the program's
// own, as a pipe, is not told either: accesses that it orders are reported.
package fencecheck
