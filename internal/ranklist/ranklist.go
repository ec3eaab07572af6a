// Package ranklist has ranks in text, for errors.
package ranklist

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Text prints ranks as "rank 3" or "ranks 0-2,5", at most 16 ranges.
func Text(ranks []int) string {
	ranks = slices.Sorted(slices.Values(ranks))
	var parts []string
	for i := 0; i < len(ranks); {
		k := i
		for k+1 < len(ranks) && ranks[k+1] == ranks[k]+1 {
			k++
		}
		part := strconv.Itoa(ranks[i])
		if k == i+1 {
			part += "," + strconv.Itoa(ranks[k])
		} else if k > i {
			part += "-" + strconv.Itoa(ranks[k])
		}
		parts = append(parts, part)
		i = k + 1
	}
	const most = 16
	if len(parts) > most {
		parts = append(parts[:most], fmt.Sprintf("... (%d in all)", len(ranks)))
	}
	if len(ranks) == 1 {
		return "rank " + parts[0]
	}
	return "ranks " + strings.Join(parts, ",")
}
