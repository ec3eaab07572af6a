package owner

import (
	"errors"
	"testing"
)

func TestGuardCatchesASecondEntryInDebugBuilds(t *testing.T) {
	var g Guard
	if err := g.Enter(); err != nil {
		t.Fatalf("first Enter: %v", err)
	}
	err := g.Enter()
	if Checked && !errors.Is(err, ErrConcurrent) {
		t.Errorf("debug build: second Enter = %v, want ErrConcurrent", err)
	}
	if !Checked && err != nil {
		t.Errorf("release build: second Enter = %v, want nil", err)
	}
	g.Exit()
	if err := g.Enter(); err != nil {
		t.Errorf("Enter after Exit: %v", err)
	}
	g.Exit()
}
