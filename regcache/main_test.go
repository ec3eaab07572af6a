package regcache

import (
	"testing"

	"github.com/ibconduit/conduit/internal/handle/handletest"
)

func TestMain(m *testing.M) {
	prepare()
	handletest.VerifyTestMain(m)
}
