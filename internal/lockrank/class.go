package lockrank

import "fmt"

// Class is a kind of lock. The constants stand in the order in which locks are taken.
type Class uint8

// The classes, the first to be taken first. Zero is none: a Mutex must be given one.
const (
	HeapGlobal Class = iota + 1 // the global heap's directory
	HeapLocal                   // a rank's local heap; the instance is the rank
	Limit                       // limits and budgets of the process
	Endpoint                    // one peer's queue and credits; the instance is its number
	Pool                        // buffers and credits that all endpoints share
	Errors                      // diagnostics
	endOfClasses
)

var classNames = [endOfClasses]string{
	HeapGlobal: "heapGlobal", HeapLocal: "heapLocal", Limit: "limit", Endpoint: "endpoint", Pool: "pool", Errors: "errors",
}

// Valid reports whether c is one of the constants.
func (c Class) Valid() bool { return c > 0 && c < endOfClasses }

func (c Class) String() string {
	if !c.Valid() {
		return fmt.Sprintf("class(%d)", uint8(c))
	}
	return classNames[c]
}
