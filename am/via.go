package am

// Via is what a request goes through: a *Endpoint itself, or a worker or job of package conduit,
// which has an endpoint for each network.
type Via interface {
	// Endpoint returns the endpoint to a rank; nil: there is none, and the request fails with
	// ErrNoEndpoint. For a rank that does not exist it may return any, which says so.
	Endpoint(rank int) *Endpoint
}

// Endpoint makes an endpoint a Via: it goes to every rank.
func (l *Endpoint) Endpoint(int) *Endpoint { return l }

// laneOf spares an endpoint the call through the interface.
func laneOf(v Via, rank int) *Endpoint {
	if l, ok := v.(*Endpoint); ok {
		return l
	}
	if v == nil {
		return nil
	}
	return v.Endpoint(rank)
}
