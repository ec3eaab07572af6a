// Package plain finds types that hold no pointer, and so mean the same to another rank.
package plain

import (
	"fmt"
	"reflect"
	"sync"
)

// checks remembers the outcome by reflect.Type.
var checks sync.Map

// Is reports whether T holds no pointer. The common types are decided without a look-up.
func Is[T any]() bool {
	var v T
	switch any(v).(type) {
	case int64, uint64, int32, uint32, int16, uint16, int8, uint8, int, uint, float64, float32, bool,
		complex128, complex64, uintptr:
		return true
	}
	t := reflect.TypeFor[T]()
	if ok, found := checks.Load(t); found {
		return ok.(bool)
	}
	ok := pointerIn(t, "T") == ""
	checks.Store(t, ok)
	return ok
}

// Pointer is the path of the first pointer in T, such as "T.Name (string)"; "" without one.
func Pointer[T any]() string { return pointerIn(reflect.TypeFor[T](), "T") }

func pointerIn(t reflect.Type, path string) string {
	switch t.Kind() {
	case reflect.Array:
		if t.Len() == 0 {
			return ""
		}
		return pointerIn(t.Elem(), path+"[0]")
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			if p := pointerIn(f.Type, path+"."+f.Name); p != "" {
				return p
			}
		}
		return ""
	case reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr,
		reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128:
		return ""
	}
	return fmt.Sprintf("%s (%v)", path, t)
}

// TypeError says that a type cannot be transferred because it holds pointers,
// which mean nothing to another rank and must not escape the garbage collector.
type TypeError struct {
	Type reflect.Type
	Path string // the first offending part, e.g. "T.Name (string)"
}

func (e *TypeError) Error() string {
	return fmt.Sprintf("%v cannot be transferred: %s holds a pointer", e.Type, e.Path)
}

// Err is the error of a T that holds pointers.
func Err[T any]() error { return &TypeError{Type: reflect.TypeFor[T](), Path: Pointer[T]()} }
