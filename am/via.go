package am

// Via is what a request goes through: a *Lane itself, or a worker or job of package conduit, which has
// a lane for each network.
type Via interface {
	// Lane returns the lane to a rank; nil: there is none, and the request fails with ErrNoLane.
	// For a rank that does not exist it may return any, which says so.
	Lane(rank int) *Lane
}

// Lane makes a lane a Via: it goes to every rank.
func (l *Lane) Lane(int) *Lane { return l }

// laneOf spares those who have a lane the call through the interface.
func laneOf(v Via, rank int) *Lane {
	if l, ok := v.(*Lane); ok {
		return l
	}
	if v == nil {
		return nil
	}
	return v.Lane(rank)
}
