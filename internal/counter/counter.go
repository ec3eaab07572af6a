// Package counter adds and reads structures of counters as a whole.
//
// A field is declared once, with what package metrics shows of it: the name of the metric behind
// the common prefix, labels, and one sentence of help, which the first of several fields of a name
// has for all.
//
//	Calls uint64 `metric:"requests_sent_total{kind=call} Requests sent."`
package counter

import (
	"reflect"
	"sync/atomic"
	"unsafe"
)

// Load reads each counter of a structure that has nothing but fields of type uint64, while others
// count. The set is no snapshot.
func Load[T any](from *T) (to T) {
	const word = unsafe.Sizeof(uint64(0))
	for off := uintptr(0); off < unsafe.Sizeof(to); off += word {
		*(*uint64)(unsafe.Add(unsafe.Pointer(&to), off)) = atomic.LoadUint64((*uint64)(unsafe.Add(unsafe.Pointer(from), off)))
	}
	return to
}

// Add is the sum of structures of numbers, field by field.
func Add[T any](a, b T) T {
	add(reflect.ValueOf(&a).Elem(), reflect.ValueOf(b))
	return a
}

func add(to, from reflect.Value) {
	for i := range to.NumField() {
		switch f := to.Field(i); f.Kind() {
		case reflect.Struct:
			add(f, from.Field(i))
		case reflect.Int, reflect.Int64:
			f.SetInt(f.Int() + from.Field(i).Int())
		default:
			f.SetUint(f.Uint() + from.Field(i).Uint())
		}
	}
}
