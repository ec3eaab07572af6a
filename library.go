package conduit

import "github.com/ibconduit/conduit/am"

// libraryOf are the endpoints of the library's parts, one on each network. They share no credit, no
// buffer and no goroutine with the program's: a part with a caller that holds a lock, which the
// program's messages wait for, never waits for these. The program's times hold for both, but an
// attendant they have always: the program does not know when a part needs progress.
func libraryOf(cfg *Config, register func(*am.Table)) endpoints {
	table := am.NewLibraryTable()
	register(table)
	m := &cfg.Messages
	params := am.Config{
		Credits: 128, Replies: 64, Spares: 8, MaxMedium: 1024, Sends: 32, ReplySends: 16,
		SpinFor: m.SpinFor, AttendAfter: max(m.AttendAfter, 0), StallAfter: m.StallAfter, PingAfter: m.PingAfter,
		SilentAfter: m.SilentAfter, CloseAfter: m.CloseAfter,
	}
	return endpoints{each: 1, table: table, params: params, cfg: cfg, words: words{
		kind: "the library", params: "the library's messages", each: "the library's",
		remedy: "start the same program on all ranks, with the same Config"}}
}

// services is the way of requests to handlers of the library; nil in a job with parts that have
// none.
func (j *Job) services() am.Via {
	if j.library.table.Len() == 0 {
		return nil
	}
	return (*services)(j)
}

type services Job

// Endpoint implements am.Via.
func (j *services) Endpoint(rank int) *am.Endpoint { return j.library.to(0, rank, &j.networks) }

// LibraryStats are MessageStats for the messages of the library's own parts; empty in a job with
// parts that have none.
func (j *Job) LibraryStats() map[string]am.Stats { return j.library.stats(&j.networks) }
