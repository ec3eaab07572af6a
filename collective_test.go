package conduit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"testing"
)

// boxSize is about what a job of 5 ranks has for a message.
const boxSize = 64 << 10 / (4 * 3)

// A buffer of another length is the mistake of one rank: it gets the error, with both
// lengths, the others get what the root sent, and all of them stay in step.
func TestABroadcastOfAnotherLengthIsRefused(t *testing.T) {
	fabrics(t, func(t *testing.T, cfg Config) {
		const n, root = 5, 3
		for _, c := range []struct{ root, other int }{
			{100, 200}, {200, 100}, {100, 0}, {0, 100},
			{boxSize, boxSize + 1}, {boxSize + 1, boxSize}, {3*boxSize + 5, 7}, {7, 3*boxSize + 5},
		} {
			for _, odd := range []int{0, 4, 2} { // in the tree ranks 2, 1 and 4: a node with children, and two leaves
				runLocal(t, n, cfg, func(ctx context.Context, j *Job) error {
					buf := make([]byte, c.root)
					switch j.Rank() {
					case odd:
						buf = make([]byte, c.other)
					case root:
						pattern(buf, 1)
					}
					err := j.Broadcast(ctx, root, buf)
					switch {
					case j.Rank() == odd:
						var le *LengthError
						want := LengthError{Op: "broadcast", Rank: odd, Len: uint64(c.other), Root: root, RootLen: uint64(c.root)}
						if !errors.As(err, &le) || *le != want {
							return fmt.Errorf("%d bytes into %d: %v, want %+v", c.root, c.other, err, want)
						}
						for i, b := range buf {
							if b != 0 {
								return fmt.Errorf("byte %d of the wrong buffer was written", i)
							}
						}
					case err != nil:
						return fmt.Errorf("%d bytes, and %d on rank %d: %w", c.root, c.other, odd, err)
					default:
						if err := samePattern(buf, 1); err != nil {
							return err
						}
					}
					v, err := BroadcastValue(ctx, j, odd, j.Rank()*10)
					if err == nil && v != odd*10 {
						err = fmt.Errorf("the next broadcast gave %d", v)
					}
					return errors.Join(err, j.Barrier(ctx))
				})
			}
		}
	})
}

func TestLengthErrorNamesLengthsAndRanks(t *testing.T) {
	const want = "broadcast: rank 2 has a buffer of 100 bytes, root 0 sends 200: they must be equal"
	if got := (&LengthError{Op: "broadcast", Rank: 2, Len: 100, Root: 0, RootLen: 200}).Error(); got != want {
		t.Errorf("%q", got)
	}
}

// Its slot is unmapped.
func TestATeamOfAClosedJobIsNotRead(t *testing.T) {
	runLocal(t, 2, Config{Fabric: FabricSHM}, func(ctx context.Context, j *Job) (err error) {
		team := j.Team()
		if err := errors.Join(j.Barrier(ctx), j.Close()); err != nil {
			return err
		}
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("after Close: %v", v)
			}
		}()
		if err := team.Broken(); err != nil {
			return fmt.Errorf("Broken: %w", err)
		}
		return wantErr(team.Leave(ctx), os.ErrClosed, "closed")
	})
}
