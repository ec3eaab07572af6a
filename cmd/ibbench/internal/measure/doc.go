// Package measure is a rank of a measurement: it joins the job, measures the
// points of a plan with its peers, and on rank 0 reports them.
//
// All ranks go through the points together. Rank 0 leads: before each stretch
// it broadcasts how much is to be done, zero at the end; so only it keeps time.
// A latency is measured from rank 0 to the last rank; throughputs between rank i
// and rank i+n/2, all pairs at once. A rank that has nothing to do sleeps meanwhile,
// since a spinning rank would take a core from the ones that are measured.
//
// The loops that are timed stand in *_datapath.go. They do not allocate, and
// read the clock once per sample: a sample is the difference of two readings.
//
// # Ping-pong
//
// The last byte of a message carries its number's lowest byte, and the aligned
// word that ends the message the number itself in big-endian order, which is
// what the receiver waits for; so the word is complete only when the last byte
// has come. Over verbs the message is one put; like ib_write_lat that relies on
// the device to write in ascending order. Over shared memory, where copies have no
// order, a message longer than a word is a put of the rest followed by one of
// the word.
//
// # Active messages
//
// A rank that receives serves its endpoints until the sender's last request of a stretch, which is
// marked. A stretch of posts ends when the peer has handled all of them. At the end of a point all
// ranks send rank 0 the counts of their endpoints: requests sent and handled must be as many, and
// none may have met no receive buffer.
//
// # Memory
//
// The segment of every rank holds two areas of equal size: one that the peer
// reaches, and one that this rank sends from or reads into. Each lane cycles
// through its own part of both. Contents are pseudorandom from the plan's seed,
// and checked at the end of a point: operations whose bytes are not what they should
// be are counted as errors of the result.
package measure
