package bootstrap

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
)

func (d detected) join(ctx context.Context, opts Options) (backend, error) {
	switch d.backend {
	case "self":
		return newSelf(), nil
	case "pmi1":
		return joinPMI1(ctx, d.env, opts)
	case "pmix":
		return joinPMIx(ctx, opts)
	}
	rv := &rendezvous{
		rank: d.rank, size: d.size, job: d.job, addr: d.addr,
		insecure: d.env.get("IBCONDUIT_INSECURE") == "1",
		timeout:  opts.Timeout, log: opts.Log, protocol: protocol, handshake: handshakeTime, grace: graceTime, exit: os.Exit,
		life: holdLife(d.env), ended: openEnded(d.env), socket: d.env.get("IBCONDUIT_SOCKET"),
		listenAt: d.env.get("IBCONDUIT_LISTEN"),
	}
	defer func() { rv.ended.close() }() // unless a peer keeps it
	var err error
	if rv.secret, err = readSecret(d.env); err != nil {
		return nil, err
	}
	if rv.addrFrom = d.addrFrom; d.munge && d.size > 1 && rv.secret == nil && !rv.insecure {
		rv.munge, err = findMunge(ctx, d.job)
		if err != nil && d.addrFrom != "" {
			return nil, fmt.Errorf("rank %d: the ranks of this step have no secret, "+
				"and munge cannot prove whose they are: %w; before srun: "+
				"export IBCONDUIT_SECRET=$(openssl rand -hex 32), or use srun --mpi=pmi2", d.rank, err)
		}
	}
	if err = rv.takeListeners(d.env); err != nil {
		return nil, err
	}
	return rv.join(ctx)
}

func (rv *rendezvous) join(ctx context.Context) (backend, error) {
	if rv.size == 1 {
		for _, f := range []*os.File{rv.listener, rv.socketListener} {
			if f != nil {
				f.Close()
			}
		}
		m := newSelf()
		if rv.job != "" {
			m.job = rv.job
		}
		return m, nil
	}
	conf, err := tlsFor(rv.secret)
	if rv.munge != nil {
		conf, err = ephemeral()
	}
	if err != nil {
		return nil, err
	}
	if rv.rank == 0 {
		return joinRoot(ctx, rv, conf)
	}
	return joinPeer(ctx, rv, conf)
}

func joinRoot(ctx context.Context, rv *rendezvous, conf *tls.Config) (backend, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, rv.timeout, errOwnTime)
	defer cancel()
	ln, err := rv.listen(ctx)
	if err != nil {
		return nil, err
	}
	if rv.secret == nil && rv.munge == nil {
		rv.log.Warn(fmt.Sprintf("bootstrap: no secret: any process that reaches %v can join this job", ln))
	}
	r := &root{
		rv: rv, conf: conf, ln: ln, hub: newHub(rv.size), raw: map[net.Conn]bool{},
		links: make([]*link, rv.size), hellos: make([]hello, rv.size), arrived: 1,
		refused: map[string]int{}, decided: make(chan struct{}),
		failures: make(chan event, 2*rv.size), // a rank falls silent at most once, and ends once
	}
	r.hellos[0] = hello{rank: 0, host: hostname(), hostID: hostID()}
	job := rv.job
	if job == "" {
		job = "tcp-" + randomID()
	}
	r.member = newMember(r.hub, 0, identity{rank: 0, size: rv.size, job: job})
	r.hub.attach(0, thisProcess(), r.deliverOwn)
	for _, l := range ln {
		r.handlers.Go(func() { r.accept(l) })
	}
	go func() {
		if e := rv.ended.await(ctx, r.hasArrived); e != nil {
			r.decide(e)
		}
	}()

	select {
	case <-r.decided:
	case <-ctx.Done():
		r.decide(r.timeout(ctx, rv.timeout))
	}
	if r.started {
		r.handlers.Go(r.endListening)
		r.handlers.Go(r.deliverFailures)
		return r, nil
	}
	r.endListening()
	r.closeAll()
	return nil, r.verdict
}
