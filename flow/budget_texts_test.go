package flow

import (
	"strings"
	"testing"
)

func TestBytesThatDifferAreShownDifferent(t *testing.T) {
	for _, fetches := range []int{1, 3} {
		err := &SetTooLargeError{Need: 1<<20 + 1, Limit: 1 << 20, Fetches: fetches}
		if text := err.Error(); !strings.Contains(text, "1048577 B") || !strings.Contains(text, "1048576 B") {
			t.Errorf("%s", text)
		}
	}
	if text := (&SetTooLargeError{Need: 3 << 20, Limit: 1 << 20}).Error(); !strings.Contains(text, "3.0 MiB") || !strings.Contains(text, "1.0 MiB") {
		t.Errorf("%s", text)
	}
}
