// Package hostlist reads lists of hosts as Slurm writes them.
package hostlist

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// mostHosts bounds what a list can make this program keep.
const mostHosts = 1 << 16

// Expand reads a list of hosts as Slurm writes it: prefix[01-03,7]suffix, several brackets.
func Expand(list string) (names []string, err error) {
	if list == "" {
		return nil, errors.New("it names no host")
	}
	depth, from := 0, 0
	for i := 0; i <= len(list); i++ {
		switch {
		case i < len(list) && list[i] == '[':
			depth++
		case i < len(list) && list[i] == ']':
			depth--
		case i == len(list) || list[i] == ',' && depth == 0:
			if depth != 0 {
				return nil, errors.New("a bracket is not closed")
			}
			more, err := expandOne(list[from:i])
			if names = append(names, more...); err != nil {
				return nil, err
			}
			from = i + 1
		}
	}
	return names, nil
}

func expandOne(item string) (names []string, err error) {
	before, rest, bracket := strings.Cut(item, "[")
	if !bracket {
		if item == "" {
			return nil, errors.New("a name is empty")
		}
		return []string{item}, nil
	}
	inside, after, ok := strings.Cut(rest, "]")
	if !ok {
		return nil, errors.New("a bracket is not closed")
	}
	tails := []string{""}
	if after != "" {
		if tails, err = expandOne(after); err != nil {
			return nil, err
		}
	}
	for part := range strings.SplitSeq(inside, ",") {
		first, last, many := strings.Cut(part, "-")
		if !many {
			last = first
		}
		a, err := strconv.ParseUint(first, 10, 32)
		b, err2 := strconv.ParseUint(last, 10, 32)
		if err != nil || err2 != nil || b < a || (b-a+1)*uint64(len(tails)) > mostHosts {
			return nil, fmt.Errorf("%q is no range of numbers", part)
		}
		for n := a; n <= b; n++ {
			for _, tail := range tails {
				names = append(names, fmt.Sprintf("%s%0*d%s", before, len(first), n, tail))
			}
		}
	}
	return names, nil
}
