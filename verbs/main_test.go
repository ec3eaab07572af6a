package verbs

import (
	"os"
	"testing"

	"github.com/ibconduit/conduit/internal/handle/handletest"
)

func TestMain(m *testing.M) {
	if role, ok := os.LookupEnv(childRole); ok {
		libraryChild(role)
		return
	}
	handletest.VerifyTestMain(m)
}
