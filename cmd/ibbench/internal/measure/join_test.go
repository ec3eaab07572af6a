package measure

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
)

// Each step ends on the rank that is last with it, whichever that is.
func TestAStepOfAStartEndsOnTheLastRank(t *testing.T) {
	s := started(100, []steps{{Born: 110, Met: 150, Joined: 160, Through: 205}, {Born: 130, Met: 140, Joined: 200, Through: 203}})
	want := report.Metrics{"join.launch": {Value: 30}, "join.bootstrap": {Value: 20}, "join.join": {Value: 50}, "join.barrier": {Value: 5}}
	if d := cmp.Diff(want, s.Metrics); d != "" {
		t.Error(d)
	}
	if s.Result.Mean != 105 || s.Result.Min != 105 || s.Result.Max != 105 || s.Result.P["50"] != 105 || s.Result.Count != 1 {
		t.Errorf("%+v", s.Result)
	}
}
