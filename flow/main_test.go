package flow

import (
	"flag"
	"testing"

	"github.com/ibconduit/conduit/internal/handle/handletest"
)

var (
	steps = flag.Int("steps", 0, "random steps of schedules of budgets (default 1 million; a tenth where parttest.Of says so)")
	seed  = flag.Uint64("seed", 1, "where random schedules start")
)

func TestMain(m *testing.M) { handletest.VerifyTestMain(m) }
