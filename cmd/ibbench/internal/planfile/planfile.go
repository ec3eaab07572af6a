// Package planfile reads a plan of several measurements from TOML:
//
//	[common]
//	fabric = "shm"
//
//	[[measure]]
//	command = "lat put"
//	sizes = [8, "4K"]
//
// What keys mean is not known here; each has the line that it is on.
package planfile

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"

	"github.com/ibconduit/conduit/internal/nearest"
)

// Plan is a file.
type Plan struct {
	Common []Setting
	Steps  []Step
}

// Step is one [[measure]].
type Step struct {
	Line     int
	Command  []string
	Settings []Setting
}

// Setting is a key and its value, or the items of a list. A measurement takes back with an empty
// list what is common.
type Setting struct {
	Line   int
	Key    string
	Values []string
}

// Error is what is wrong with a line.
type Error struct {
	Line int // from 1; 0: with the whole
	Err  error
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return e.Err.Error()
	}
	return fmt.Sprintf("line %d: %v", e.Line, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// At says which line an error is about.
func At(line int, format string, args ...any) error {
	return &Error{line, fmt.Errorf(format, args...)}
}

// names of what a file has at its top.
const (
	common  = "common"
	measure = "measure"
	command = "command"
)

// Parse reads a file. Its errors are of type *Error.
func Parse(text []byte) (*Plan, error) {
	text = bytes.TrimPrefix(text, []byte("\ufeff")) // a byte order mark
	// What is no TOML, and keys that stand twice in a table.
	var whole map[string]any
	if err := toml.Unmarshal(text, &whole); err != nil {
		line := 0
		if at := new(toml.DecodeError); errors.As(err, &at) {
			line, _ = at.Position()
		}
		return nil, At(line, "%w", err)
	}
	r := &reader{plan: new(Plan)}
	r.tree.Reset(text)
	for r.tree.NextExpression() {
		if err := r.expression(r.tree.Expression()); err != nil {
			return nil, err
		}
	}
	if err := r.tree.Error(); err != nil {
		return nil, At(0, "%w", err)
	}
	for _, s := range r.plan.Steps {
		if len(s.Command) == 0 {
			return nil, At(s.Line, `this measurement has no command, such as command = "lat put"`)
		}
		if i := slices.IndexFunc(s.Command, func(w string) bool { return strings.HasPrefix(w, "-") }); i >= 0 {
			return nil, At(s.Line, "%s in the command: flags are keys of a measurement, without dashes", s.Command[i])
		}
	}
	if len(r.plan.Steps) == 0 {
		return nil, At(0, "there is no [[measure]] in it: nothing to do")
	}
	return r.plan, nil
}

// reader goes through the expressions of a file.
type reader struct {
	tree  unstable.Parser
	plan  *Plan
	table string // that it is in
}

func (r *reader) expression(e *unstable.Node) error {
	switch e.Kind {
	case unstable.Table, unstable.ArrayTable:
		key, line := r.key(e)
		want := common
		if e.Kind == unstable.ArrayTable {
			want = measure
		}
		switch {
		case key != common && key != measure:
			return At(line, "unknown table %q; the nearest is %q", key, nearest.Name(key, []string{common, measure}))
		case key != want:
			return At(line, "want [%s] and [[%s]], a table for each measurement", common, measure)
		}
		if r.table = key; key == measure {
			r.plan.Steps = append(r.plan.Steps, Step{Line: line})
		}
	case unstable.KeyValue:
		key, line := r.key(e)
		values, err := r.values(e.Value())
		if err != nil {
			return At(line, "%s: %w", key, err)
		}
		return r.setting(Setting{line, key, values})
	}
	return nil
}

func (r *reader) setting(s Setting) error {
	switch {
	case r.table == "":
		return At(s.Line, "%s stands above all tables; what all measurements have in common goes below [%s]", s.Key, common)
	case r.table == common && s.Key == command:
		return At(s.Line, "%s belongs to a [[%s]]", command, measure)
	case r.table == common && len(s.Values) == 0:
		return At(s.Line, "%s: an empty list", s.Key)
	case r.table == common:
		r.plan.Common = append(r.plan.Common, s)
		return nil
	}
	step := &r.plan.Steps[len(r.plan.Steps)-1]
	switch {
	case s.Key != command:
		step.Settings = append(step.Settings, s)
	case len(s.Values) == 1:
		step.Command = strings.Fields(s.Values[0])
	default:
		step.Command = s.Values
	}
	return nil
}

// key is that of a table or a value. A dotted one is none of ours, and found out as unknown.
func (r *reader) key(e *unstable.Node) (name string, line int) {
	var parts []string
	for it := e.Key(); it.Next(); {
		n := it.Node()
		if parts = append(parts, string(n.Data)); line == 0 {
			line = r.tree.Shape(n.Raw).Start.Line
		}
	}
	return strings.Join(parts, "."), line
}

// values are the items of a list, or the one value.
func (r *reader) values(n *unstable.Node) (all []string, err error) {
	switch n.Kind {
	case unstable.String:
		return []string{string(n.Data)}, nil
	case unstable.Bool, unstable.Float:
		return []string{string(n.Data)}, nil
	case unstable.Integer:
		return []string{strings.ReplaceAll(string(n.Data), "_", "")}, nil
	case unstable.Array:
		for it := n.Children(); it.Next(); {
			if it.Node().Kind == unstable.Array {
				return nil, errors.New("a list in a list")
			}
			some, err := r.values(it.Node())
			if err != nil {
				return nil, err
			}
			all = append(all, some...)
		}
		return all, nil
	}
	return nil, errors.New("want a text, a number, true, false, or a list of them; a time is a text, as \"300ms\"")
}
