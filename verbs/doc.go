// Package verbs is libibverbs for Go: one Go type per C object, plain Go types in every signature,
// and a data path that crosses into C once per batch. It works with any provider of libibverbs and
// makes no vendor calls.
//
// # From a device to a completion
//
//	ctx, err := verbs.Open("mlx5_0")                       // *Context; Devices lists the names
//	port, err := ctx.Port(1)                               // attributes
//	gids, err := ctx.GIDs(1)
//	gid, err := verbs.ChooseGID(port, gids, verbs.AutoGID) // which address, and why
//	pd, err := ctx.AllocPD()
//	mr, err := pd.Register(ptr, n, verbs.AccessAll)
//	cq, err := ctx.CreateCQ(verbs.CQConfig{Entries: 1024})
//	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, MaxInline: 64})
//	path, err := verbs.ComputePath(here, there)            // ends as NewPathEnd describes them
//	err = qp.Init(verbs.InitAttr{Access: verbs.AccessAll})
//	rtr := verbs.RTRAttr{AV: path.AV, PathMTU: path.MTU, DestQPN: theirs, RQPSN: theirPSN}
//	err = qp.ReadyToReceive(rtr)
//	err = qp.ReadyToSend(verbs.RTSAttr{SQPSN: ourPSN})
//
//	chain, err := verbs.NewSendChain(verbs.ChainConfig{Slots: 16, Inline: 64})
//	bell, err := cq.NewDoorbell(verbs.DoorbellConfig{})
//	w := chain.WR(0)                                       // set once
//	w.Opcode, w.Flags = verbs.OpWrite, verbs.Signaled
//	chain.SetLocal(0, mr.Addr(), 8, mr.LKey())
//	w.SetRemote(addr, rkey)                                // set per post
//	err = bell.Send(qp, chain, 0, 1)                       // nothing is posted yet
//	n, err := bell.Ring(1, time.Second) // one cgo call: post, and poll until 1 completion
//	err = bell.Completions()[0].Err()
//
// # Ownership
//
// An object is made by its parent and keeps it alive. Close is idempotent; on a parent with open
// children it returns an *Error that is ErrBusy and lists them, and changes nothing. So close in
// the opposite order of making. An object that becomes garbage unclosed is reported by
// internal/handle; nothing is freed behind a device's back.
//
//	Context > PD > MR, AH, SRQ, QP
//	Context > CompChannel > CQ > Doorbell
//	CQ, SRQ > QP
//
// Every method of a closed object returns an error that is os.ErrClosed, except accessors of what
// was learned at creation, which go on answering, and SendChain.WR and its like, which panic.
//
// # Goroutines
//
// The control path (everything but the two below) may be used by any number of goroutines. A Close
// that meets a call in progress is refused with ErrBusy.
//
// A SendChain, a RecvChain and a Doorbell belong to one goroutine at a time; handing them over
// through a channel is fine. Two doorbells may post to one QP and poll one CQ from two goroutines,
// since libibverbs locks both, but the order of their posts is then undefined.
//
// # What blocks
//
// Ring occupies a thread for its budget: keep it in microseconds, at most milliseconds, and come
// back. The wait is a spin, in C, that never sleeps. CompChannel.Wait parks
// the goroutine in the runtime's poller until its context ends, CompChannel.WaitFor for a time.
// Opening, registering and creating take the time of system calls. Everything else returns at once.
// The context's one goroutine takes asynchronous events: a CQ that has overrun is an ErrOverrun at
// the next ring.
//
// # Memory
//
// Work requests, scatter lists and completions of the data path live in memory mapped by this
// package, at addresses that never change; no Go pointer is handed to a device by it. Registering
// is the caller's affair: see PD.Register.
//
// # InfiniBand without a subnet administrator
//
// ComputePath assumes, as holds on nearly all clusters, reversible paths with one service level.
// It queries no subnet manager.
//
// # The library
//
// A program is neither linked with libibverbs nor built with its header. Devices and Open load it
// when they are first called (see Library for where it is looked for); a host without it is an
// ErrNoLibrary that says what to install, and everything that needs no device goes on. Any
// libibverbs.so.1 of rdma-core will do. Where it lacks a newer call (of the release in parentheses)
// an older way is taken:
//
//	_ibv_query_gid_table (32)     ibv_query_gid for each entry, and the kernel's gid_attrs
//	ibv_is_fork_initialized (35)  GetForkStatus says ForkDisabled
//
// Its declarations stand in ibc_abi.h and ibc_calls.h. The calls of the data path go through
// the table of the device, as in its own header.
//
// # Builds
//
// It needs cgo and Linux. Without, the types and pure functions remain, and Library, Devices and
// Open return ErrNotSupported.
package verbs
