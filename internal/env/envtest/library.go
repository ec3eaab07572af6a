package envtest

import (
	"fmt"

	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/internal/env"
	"github.com/ibconduit/conduit/internal/fabric"
)

// OpenLibrary opens the message endpoint of a rank of this package, with a table of handlers of the
// library: from then on it is the Env's Messages. All ranks open theirs with equal tables. The
// caller closes it. cfg sizes the endpoint.
func OpenLibrary(e env.Env, t *am.Table, cfg am.Config) (*am.Endpoint, error) {
	r, ok := e.(interface{ base() *rank })
	if !ok {
		return nil, fmt.Errorf("envtest: %T is no Env of this package", e)
	}
	b := r.base()
	m, ok := b.net.(fabric.Messenger)
	if !ok {
		return nil, fmt.Errorf("envtest: network %s carries no messages", b.net.Name())
	}
	cfg.Rank, cfg.Size, cfg.Table, cfg.Host, cfg.OnClosed = b.id, b.size, t, e.Host(), b.SetDown
	l, err := am.Open(m, 0, cfg)
	if err == nil {
		b.messages = l
	}
	return l, err
}

func (r *rank) base() *rank { return r }

func (r *rank) Messages() am.Via {
	if r.messages == nil {
		return nil
	}
	return r.messages
}

func (r *rank) Endpoints() []*am.Endpoint {
	if r.messages == nil {
		return nil
	}
	return []*am.Endpoint{r.messages}
}
