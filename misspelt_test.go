package conduit

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestMisspeltVariablesAreTold(t *testing.T) {
	for name, want := range map[string]string{
		"FABRICS": "FABRIC", "FABIRC": "FABRIC", "fabric": "FABRIC", "SEGMENTSIZE": "SEGMENT_SIZE", "JOIN_TIMEOT": "JOIN_TIMEOUT", "ADRR": "ADDR",
		"ROOT": "", "DIR": "", "VERSION": "", "": "", // a site's own
	} {
		name = ownPrefix + name
		var told strings.Builder
		tellMisspelt(&told, []string{"PATH=/bin", name + "=shm"})
		if want != "" {
			want = "conduit: " + name + " is set and means nothing: is it " + ownPrefix + want + "?\n"
		}
		if told.String() != want {
			t.Errorf("%s: %q, want %q", name, told.String(), want)
		}
	}
}

// The documentation has all variables; those of the tools and tests come last.
func TestKnownVariablesAreThoseOfTheDocument(t *testing.T) {
	text, err := os.ReadFile("docs/environment.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| `" + ownPrefix + "([A-Z_]+)`")
	names := func(text string) (all []string) {
		for _, m := range rows.FindAllStringSubmatch(text, -1) {
			all = append(all, m[1])
		}
		return all
	}
	programs, tools, _ := strings.Cut(string(text), "\n## Soft-RoCE")
	if got, want := slices.Sorted(slices.Values(ownVariables)), slices.Sorted(slices.Values(names(programs))); !slices.Equal(got, want) {
		t.Errorf("known are %q, and documented %q", got, want)
	}
	var told strings.Builder
	for _, n := range names(tools) {
		tellMisspelt(&told, []string{ownPrefix + n + "=1"})
	}
	if told.Len() > 0 || len(names(tools)) == 0 {
		t.Errorf("of tools and tests: %s", told.String())
	}
}

func TestEmptyVariablesAreNotSet(t *testing.T) {
	unset, err := Config{Getenv: func(string) (string, bool) { return "", false }}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	empty, err := Config{Getenv: func(string) (string, bool) { return "", true }}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*Config{&unset, &empty} {
		c.Getenv, c.parts, c.Logger = nil, nil, nil
	}
	if got, want := fmt.Sprintf("%+v", empty), fmt.Sprintf("%+v", unset); got != want {
		t.Errorf("empty variables give\n%s, and none\n%s", got, want)
	}
}
