package hostlist

import (
	"strings"
	"testing"
)

func TestListsAreExpanded(t *testing.T) {
	for list, want := range map[string]string{
		"n1": "n1", "n1,n2": "n1 n2", "n[01-03,7]": "n01 n02 n03 n7", "n[7,1-3]-ib": "n7-ib n1-ib n2-ib n3-ib",
		"r[1-2]n[08-9],x": "r1n08 r1n09 r2n08 r2n09 x", "tux-3.site,tux-4": "tux-3.site tux-4",
		"": "", "n[1": "", ",n1": "", "n1]": "", "n[2-1]": "", "n[1-99999999]": "", "n[a]": "",
	} {
		got, err := Expand(list)
		if (err != nil) != (want == "") || err == nil && strings.Join(got, " ") != want {
			t.Errorf("%q: %q, %v; want %q", list, got, err, want)
		}
	}
}
