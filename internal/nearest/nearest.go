// Package nearest finds the known name that a misspelt one is meant to be.
package nearest

import (
	"fmt"
	"slices"
	"strings"
)

// Name is the one of names that takes the fewest edits to come to.
func Name(word string, names []string) string {
	return slices.MinFunc(names, func(a, b string) int { return edits(a, word) - edits(b, word) })
}

// Misspelt says of the variables of an environment with this prefix which are almost ones that are
// known: they change nothing, and no other check would say so. Others may be the site's own. The
// known names are without the prefix.
func Misspelt(environ []string, prefix string, known []string) (told []string) {
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		rest, ours := strings.CutPrefix(name, prefix)
		if !ours || slices.Contains(known, rest) {
			continue
		}
		if k := Name(rest, known); edits(k, rest) <= len(k)/4 {
			told = append(told, fmt.Sprintf("%s is set and means nothing: is it %s%s?", name, prefix, k))
		}
	}
	return told
}

// edits is how many letters are to be put in, left out, replaced or exchanged with their neighbour.
// Case and underscores do not count: one edit for all.
func edits(a, b string) int {
	if plain := strings.NewReplacer("_", ""); strings.EqualFold(plain.Replace(a), plain.Replace(b)) {
		return 1
	}
	var older []int
	last := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		next := make([]int, len(b)+1)
		next[0] = i
		for j := 1; j <= len(b); j++ {
			next[j] = min(last[j], next[j-1]) + 1
			if a[i-1] == b[j-1] {
				next[j] = min(next[j], last[j-1])
			} else {
				next[j] = min(next[j], last[j-1]+1)
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], older[j-2]+1)
			}
		}
		older, last = last, next
	}
	return last[len(b)]
}
