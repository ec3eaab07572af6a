package coll

// Number is what Sum, Min and Max work on.
type Number interface {
	Integer | ~float32 | ~float64
}

// Integer is what And, Or and Xor work on.
type Integer interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr
}

// A reduction's function takes slices of the same length and sets each element of dst to dst op
// src. Elements of dst come from members before the ones of src, so op need not be commutative; it
// must be associative, or nearly so as sums of floats are. The function is called several times,
// with parts of the buffers, on the goroutine of the operation. It must not keep the slices, nor
// call operations of the same team. All members give the same function.
//
// The functions below are in this form. Loops over them are as fast as the compiler makes them.

// Sum adds; integers wrap around.
func Sum[T Number](dst, src []T) {
	src = src[:len(dst)]
	for len(dst) >= 4 {
		d, s := (*[4]T)(dst), (*[4]T)(src)
		d[0] += s[0]
		d[1] += s[1]
		d[2] += s[2]
		d[3] += s[3]
		dst, src = dst[4:], src[4:]
	}
	for i := range dst {
		dst[i] += src[i]
	}
}

// Min keeps the lesser one; a NaN where one of them is.
func Min[T Number](dst, src []T) {
	src = src[:len(dst)]
	for i, v := range src {
		dst[i] = min(dst[i], v)
	}
}

// Max keeps the greater one; a NaN where one of them is.
func Max[T Number](dst, src []T) {
	src = src[:len(dst)]
	for i, v := range src {
		dst[i] = max(dst[i], v)
	}
}

// And is bitwise.
func And[T Integer](dst, src []T) {
	src = src[:len(dst)]
	for i, v := range src {
		dst[i] &= v
	}
}

// Or is bitwise.
func Or[T Integer](dst, src []T) {
	src = src[:len(dst)]
	for i, v := range src {
		dst[i] |= v
	}
}

// Xor is bitwise.
func Xor[T Integer](dst, src []T) {
	src = src[:len(dst)]
	for i, v := range src {
		dst[i] ^= v
	}
}
