package nearest

import "testing"

func TestTheNearestNameTakesTheFewestChanges(t *testing.T) {
	for word, want := range map[string]string{"szies": "sizes", "size": "sizes", "iter": "iters", "rond": "rounds", "": "ack"} {
		if got := Name(word, []string{"rounds", "sizes", "iters", "ack"}); got != want {
			t.Errorf("%q: %s, want %s", word, got, want)
		}
	}
}
