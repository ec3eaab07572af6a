// Package given is about values that a command line gives.
package given

import (
	"errors"
	"reflect"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// Values has a parser refuse values that are empty, of flags, of their variables and of arguments:
// "$UNSET" of a script is one, and is not the same as a flag left out.
func Values() kong.Option {
	known := kong.NewRegistry().RegisterDefaults()
	return kong.OptionFunc(func(k *kong.Kong) error {
		// Strings come first: the items of slices are read as they are.
		for _, zero := range []any{"", 0, int64(0), uint64(0), 0.0, []string(nil)} {
			t := reflect.TypeOf(zero)
			m := full{known.ForType(t)}
			known.RegisterKind(t.Kind(), m)
			if err := kong.KindMapper(t.Kind(), m).Apply(k); err != nil {
				return err
			}
		}
		duration := reflect.TypeFor[time.Duration]()
		return kong.TypeMapper(duration, full{known.ForType(duration)}).Apply(k)
	})
}

type full struct{ kong.Mapper }

func (f full) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	text, _ := ctx.Scan.Peek().Value.(string)
	// kong.SplitEscaped leaves out a last item that is empty.
	last, cut := strings.CutSuffix(text, string(ctx.Value.Tag.Sep))
	if text == "" || cut && target.Kind() == reflect.Slice && !strings.HasSuffix(last, `\`) {
		return errors.New("the value is empty, as that of a variable that is not set")
	}
	return f.Mapper.Decode(ctx, target)
}
