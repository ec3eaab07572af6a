package coll

import "fmt"

// Kind is a kind of operation.
type Kind uint8

// The kinds. A message has 4 bits for it.
const (
	KindNone Kind = iota
	KindBarrier
	KindBroadcast
	KindAllGather
	KindSplit
	KindFree
	KindShrink
	KindReduce
	KindAllReduce
	KindScan
	KindExScan
	KindAllToAll
	KindScatter
	KindGather
)

func (k Kind) String() string {
	switch k {
	case KindNone:
		return "operation"
	case KindBarrier:
		return "barrier"
	case KindBroadcast:
		return "broadcast"
	case KindAllGather:
		return "all-gather"
	case KindSplit:
		return "split"
	case KindFree:
		return "free"
	case KindShrink:
		return "shrink"
	case KindReduce:
		return "reduce"
	case KindAllReduce:
		return "all-reduce"
	case KindScan:
		return "scan"
	case KindExScan:
		return "exclusive scan"
	case KindAllToAll:
		return "all-to-all"
	case KindScatter:
		return "scatter"
	case KindGather:
		return "gather"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}
