package ibv

import (
	"testing"

	"github.com/ibconduit/conduit/internal/handle/handletest"
)

func TestMain(m *testing.M) { handletest.VerifyTestMain(m) }
