package flow

import "github.com/ibconduit/conduit/internal/credit"

// The credits of messages between two ranks, as package am has them in its configuration, its
// figures and its errors.
type (
	// Config is how many credits a rank has of another.
	Config = credit.Config
	// PoolStats are the figures of a receiver's credits.
	PoolStats = credit.PoolStats
	// NoCreditError explains why a peer cannot be sent to.
	NoCreditError = credit.NoCreditError
	// ViolationError is a peer's breach of the protocol of credits.
	ViolationError = credit.ViolationError
)

var (
	// ErrNoCredit matches every *NoCreditError.
	ErrNoCredit = credit.ErrNoCredit
	// ErrNoReply is that every reply buffer waits for a reply.
	ErrNoReply = credit.ErrNoReply
)
