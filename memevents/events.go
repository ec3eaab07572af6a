package memevents

import "fmt"

// Kind is what happened to a range.
type Kind uint8

// The kinds.
const (
	Mapped   Kind = iota + 1 // memory came, seen after the call
	Unmapped                 // memory goes or has gone, seen before or after the call
	Lost                     // some events were lost here: look anew at all that depends on them
)

func (k Kind) String() string {
	switch k {
	case Mapped:
		return "mapped"
	case Unmapped:
		return "unmapped"
	case Lost:
		return "lost"
	}
	return "unknown kind"
}

// Event is one change, or Lost with no range.
type Event struct {
	Kind   Kind
	Lo, Hi uintptr // page-rounded
}

func (e Event) String() string {
	if e.Kind == Lost {
		return "lost"
	}
	return fmt.Sprintf("%v [%#x,%#x)", e.Kind, e.Lo, e.Hi)
}

// DefaultEventBuffer is how many events wait for a subscriber.
const DefaultEventBuffer = 1024
