// Package coll has teams of ranks and their collective operations: barrier, broadcast, all-gather.
// docs/collectives.md has the contract on one page.
//
// A [Team] is a list of ranks with its own order of operations. [Open] makes the team of all ranks;
// [Team.Split] makes others, [Team.Free] ends them, and [Team.Shrink] rebuilds a broken one without
// the dead. A failure breaks a team, never the job.
//
// # Mechanism
//
// Members write into each other's memory by puts and wait for words that others write. A team of n
// has log2(n) rails, rounded up: on rail r each member sends to the one 2^r after it, and receives
// from the one 2^r before. So each place in memory has one writer. All operations use rails and
// nothing else: a dissemination barrier, a binomial tree from any root (a child differs from its
// parent in one bit), Bruck's all-gather. Payloads travel in messages of shape.chunk bytes, one
// behind the other; up to depth of them are on their way on a rail, and the receiver acknowledges
// every second one that it has read. No operation waits for another member's program but by
// waiting for a word.
//
// Operations without lanes of their own share one set, under a lock that is held for a post, or
// while the network completes what was posted, and never while another rank's program is waited
// for. So teams do not hold each other up.
//
// # Memory
//
// Each rank has one region ([Spec]), of Config.Slots slots. A team has the slot of the same number
// on all its members. Offsets in a slot, in a job of s ranks with R = log2(s) rails; words have 64
// bits:
//
//	0                word that breaks the team, from any member; see encodeBroken
//	8                the same, where it may still be on its way when another team has the slot
//	64               R words: acknowledgements of the rail that this member sends on:
//	                 generation (24 bits), messages read (40)
//	reports          twice s words: reports of Shrink, by the sender's rank in the job, for even
//	                 generations and odd ones; see final
//	sets             this member's set of Shrink: s bits for the dead, s for those that left
//	entries          R times depth messages: word, padding to 64 bytes, data
//
// A message's word is written behind its data: generation of the team (24 bits), number in its
// rail (8), kind of operation (4), number of the operation (12), hash of number, root and name
// (16). A receiver waits for exactly the generation and number that come next, so nothing has to
// be cleared when a team gets a slot, and a word of an earlier team is never taken for one of
// this; the rest tells it whether the sender is in the same operation.
//
// # Slots
//
// A word of an earlier team that arrives late could overwrite one of the next. It cannot arrive:
// Free ends when all members have flushed and have received what was sent to them in its barrier;
// Shrink when all survivors have flushed; and a network delivers nothing of a rank that it takes
// for dead. The exceptions, of members that abandon Free or whose Split fails, write a word of
// their own (offset 8), under a generation that no other team has.
package coll
