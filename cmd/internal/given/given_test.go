package given

import (
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
)

type flags struct {
	Text  string
	Word  *string `enum:"a,b"`
	Items []string
	Whole []string `sep:"none"`
	N     int
	Wide  *int64
	Seed  uint64
	Share float64
	Time  time.Duration
	After *time.Duration
	Arg   string `arg:"" optional:""`
}

func TestEmptyValuesAreRefused(t *testing.T) {
	for _, args := range []string{"--text=", "--word=", "--items=", "--items=a,,b", "--items=a,", "--items= --items=a", "--whole=", "--n=", "--wide=", "--seed=", "--share=", "--time=", "--after=", "EMPTY"} {
		list := strings.Fields(args)
		if args == "EMPTY" {
			list = []string{""}
		}
		parser, err := kong.New(new(flags), Values())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parser.Parse(list); err == nil || !strings.Contains(err.Error(), "the value is empty, as that of a variable that is not set") {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func TestOtherValuesAreReadAsBefore(t *testing.T) {
	var f flags
	parser, err := kong.New(&f, Values())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse(strings.Fields("--text=t --word=b --items=a,b --whole=a,b --n=-1 --wide=2 --seed=3 --share=0.5 --time=1s --after=2s arg")); err != nil {
		t.Fatal(err)
	}
	if parser, err := kong.New(new(flags), Values()); err != nil {
		t.Fatal(err)
	} else if _, err := parser.Parse([]string{`--items=a\,`, "--whole=a,"}); err != nil {
		t.Errorf("commas that divide nothing: %v", err)
	}
	if f.Text != "t" || *f.Word != "b" || len(f.Items) != 2 || len(f.Whole) != 1 || f.N != -1 || *f.Wide != 2 || f.Seed != 3 || f.Share != 0.5 || f.Time != time.Second || *f.After != 2*time.Second || f.Arg != "arg" {
		t.Errorf("%+v", f)
	}
	if parser, err = kong.New(&f, Values()); err == nil {
		_, err = parser.Parse(nil)
	}
	if err != nil || f.Text != "" || f.Word != nil {
		t.Errorf("without flags: %+v, %v", f, err)
	}
}
