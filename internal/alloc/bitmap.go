package alloc

import (
	"math/bits"
	"unsafe"
)

// bitmap is a set of numbers that finds its least one in one step a level: a bit of a level says
// whether the word of the level below has any.
type bitmap struct{ levels [][]uint64 }

// resize makes room for the numbers below n. Those beyond must not be in the set.
func (b *bitmap) resize(n uint64) {
	for l := 0; ; l++ {
		n = (n + 63) / 64
		if l == len(b.levels) {
			b.levels = append(b.levels, nil)
			if l > 0 { // the first words of the level below may have some
				b.levels[l] = make([]uint64, n)
				for i, w := range b.levels[l-1] {
					if w != 0 {
						b.levels[l][i/64] |= 1 << (i % 64)
					}
				}
			}
		}
		level := b.levels[l]
		if have := uint64(len(level)); n > have {
			level = append(level, make([]uint64, n-have)...)
		}
		b.levels[l] = level[:n]
		if n <= 1 && l == len(b.levels)-1 {
			return
		}
	}
}

func (b *bitmap) has(i uint64) bool {
	words := b.levels[0]
	return i/64 < uint64(len(words)) && words[i/64]>>(i%64)&1 != 0
}

func (b *bitmap) set(i uint64) {
	for _, words := range b.levels {
		w := &words[i/64]
		was := *w
		*w |= 1 << (i % 64)
		if was != 0 {
			return
		}
		i /= 64
	}
}

// clear takes i out, and reports whether the set is empty then.
func (b *bitmap) clear(i uint64) (empty bool) {
	for _, words := range b.levels {
		w := &words[i/64]
		if *w &^= 1 << (i % 64); *w != 0 {
			return false
		}
		i /= 64
	}
	return true
}

// first is the least number in the set, which is not empty.
func (b *bitmap) first() (i uint64) {
	for l := len(b.levels) - 1; l >= 0; l-- {
		i = i*64 + uint64(bits.TrailingZeros64(b.levels[l][i]))
	}
	return i
}

func (b *bitmap) bytes() (n uint64) {
	for _, words := range b.levels {
		n += uint64(unsafe.Sizeof(words)) + 8*uint64(cap(words))
	}
	return n
}
