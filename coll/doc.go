// Package coll has teams of ranks and their collective operations: barrier, broadcast, all-gather,
// and operations on typed data: [AllReduce], [Reduce], [Scan], [AllToAll], [Scatter], [Gather] and
// their kind. docs/collectives.md has the contract on one page.
//
// A [Team] is a list of ranks with its own order of operations. [Open] makes the team of all ranks;
// [Team.Split] makes others, [Team.Free] ends them, and [Team.Shrink] rebuilds a broken one without
// the dead. A failure breaks a team, never the job.
//
// # Mechanism
//
// Members write into each other's memory by puts and wait for words that others write. A team of n
// has log2(n) rails, rounded up: on rail r each member sends to the one 2^r after it, and receives
// from the one 2^r before. So each place in memory has one writer. Short operations use rails and
// nothing else: a dissemination barrier, a binomial tree from any root (a child differs from its
// parent in one bit), and one to any root; Bruck's all-gather and all-to-all. Payloads travel in
// messages of shape.chunk bytes, one behind the other; up to depth of them are on their way on a
// rail, and the receiver acknowledges every second one that it has read. Where an operation has one
// message on each rail, and ends when all members have begun it, as a barrier does, none is needed:
// both sides of a rail know that earlier messages have been read (met, rails_datapath.go). No
// operation waits for another member's program but by waiting for a word.
//
// A member with memory that loads and stores reach is sent to by stores, without a lane and its
// lock.
//
// Operations without lanes of their own share one set, under a lock that is held for a post, or
// while the network completes posts, and never while another rank's program is waited for. So teams
// do not hold each other up.
//
// # Structure
//
// Each part names those below it, and calls downwards only:
//
//	Team      team.go collectives.go pending.go         the API: one operation after the other
//	          split.go shrink.go                        what makes and ends teams
//	Teams     teams.go gate.go slots.go                 what a rank has of its teams
//	reducer   reduce_datapath.go scan_datapath.go       reductions
//	          mapped_datapath.go shares_datapath.go reducer.go
//	op        op.go exchange_datapath.go operations_datapath.go pull_datapath.go near.go
//	rails     rails_datapath.go rounds_datapath.go      messages to neighbours, and rounds of them
//	pairs     pairs_datapath.go                         messages to any member
//	step      step.go data.go                           one operation: its waits, its puts
//	health    health.go agreement.go                    whether a team is broken
//	membership  membership.go                         members, and a team's memory
//	shared    shared.go turn.go                         the lanes of all teams
//
// # Long data
//
// Any two members have a channel of their own as well, in which long data goes straight
// (pairs_datapath.go). A receiver grants places of its slot to the senders that it expects, in the
// order in which it will read, and ahead of that; a sender that has a grant writes its message
// there, and then the pair's word. Members send in an order without a circle of waits: to the one k
// behind, from the one k before, for k = 1, 2 and so on, by turns.
//
// Members that all reach each other by loads and stores reduce in memory, in panes of their slots
// (mapped_datapath.go). Where they may also read each other's memory through the kernel,
// process_vm_readv(2), all-to-all and all-gather read long blocks where they are
// (pull_datapath.go). Which it is all members agree on once a team, in an all-gather, before the
// first long operation (near.go). On several hosts of several ranks each, in a row, the first of
// each host put together over the network what their hosts have reduced in memory.
//
// With a budget (env.Budget) a receiver grants as many places as that has room for, and one in any
// case. It waits for memory only for elements that fit no message, which one member reduces with
// memory for two.
//
// A reduction applies the function in the order of ranks, so that it need be associative only. It
// computes each element of the result at one member, or at all in the same way: hence the same
// bits.
//
// # Memory
//
// Each rank has one region ([Spec]), of Config.Slots slots. A team has the slot of the same number
// on all its members. Offsets in a slot, in a job of s ranks with R = log2(s) rails; words have 64
// bits:
//
//	0                word that breaks the team, from any member; see encodeBroken
//	8                the same, where it may still be on its way when another team has the slot
//	16               generation of the team that this member reserved the slot for; see sift
//	24               whether this member's wait for the budget's memory has ended; see acquire
//	32               operation that this member is in, or was in last; see position
//	64               R words: acknowledgements of the rail that this member sends on:
//	                 generation (24 bits), messages read (40)
//	notices          R words: the operation of the member that a rail comes from, if it waits long;
//	                 see notice
//	reports          twice s words: reports of Shrink, by the sender's rank in the job, for even
//	                 generations and odd ones; see final
//	sets             this member's set of Shrink: s bits for the dead, s for those that left
//	grants           s words: the last grant of each other member, by its rank in the team; see
//	                 grantWord
//	arrivals         s words: messages of pairs that have arrived, by the sender's rank in the team
//	refs             s words: where a member of this host has the bytes that are to be read
//	entries          R times depth messages: word, data, padding to lines of 64 bytes
//	places           4 places for messages of pairs, as they are granted
//	panes            5 panes for pieces that are reduced in memory; others of the host write them
//	scratch          memory of this member's own, for data on its way through it
//
// A message's word is written behind its data: generation of the team (24 bits), number in its rail
// (8), kind of operation (4), number of the operation (12), hash of number, root and name (16). A
// receiver waits for exactly the generation and number that come next, so nothing has to be cleared
// when a team gets a slot, and a word of an earlier team is never taken for one of this; the rest
// says whether the sender is in the same operation.
//
// # Slots
//
// A word of an earlier team that arrives late could overwrite one of the next. It cannot arrive:
// Free ends when all members have flushed and have received the messages of its barrier; Shrink
// when all survivors have flushed; and a network delivers nothing of a rank that it takes for dead.
// The exceptions, of members that abandon Free or with a Split that fails, write a word of their
// own (offset 8), under a generation that no other team has.
package coll
