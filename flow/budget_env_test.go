package flow_test

import (
	"github.com/ibconduit/conduit/am"
	"github.com/ibconduit/conduit/flow"
	"github.com/ibconduit/conduit/internal/env"
)

// What a job gives its parts, and what it waits with.
var (
	_ env.Budget  = (*flow.Budget)(nil)
	_ flow.Parker = am.Parker(nil)
)
