package main

import (
	"context"
	_ "embed" // the example
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/planfile"
	"github.com/ibconduit/conduit/internal/nearest"
)

// runCmd is ibbench run.
type runCmd struct {
	Plan    string `arg:"" optional:"" placeholder:"PLAN" help:"The plan, a file in TOML. - is standard input."`
	Example bool   `help:"Print a plan to begin with, and end."`
	Check   bool   `help:"Print the command lines, and end."`
	Quiet   bool   `short:"q" help:"Do not say which measurement begins."`
}

//go:embed example.toml
var examplePlan string

// planned is one measurement of a plan.
type planned struct {
	*planfile.Step
	path string // the command: "flow jacobi"
	args []string
	cmd  command
}

func (c *runCmd) run(ctx context.Context, io streams) error {
	switch {
	case c.Example:
		_, err := fmt.Fprint(io.out, examplePlan)
		return err
	case c.Plan == "":
		return usageError{errors.New("which plan? ibbench run PLAN; ibbench run --example prints one to begin with")}
	}
	text, err := c.read()
	if err != nil {
		return usageError{err}
	}
	all, err := steps(ctx, io, text)
	if err != nil {
		return usageError{fmt.Errorf("%s: %w", c.Plan, err)}
	}
	if err := io.alone(ctx, "run starts one measurement after the other, and a launcher's ranks can join once"); err != nil {
		return err
	}
	if err := os.Setenv("IBCONDUIT_BOOTSTRAP", "self"); err != nil { // nor does its only rank join again
		return err
	}
	code := exitOK
	for i, m := range all {
		line := "ibbench " + strings.Join(m.args, " ")
		if c.Check {
			if _, err := fmt.Fprintln(io.out, line); err != nil {
				return err
			}
			continue
		}
		if !c.Quiet {
			fmt.Fprintf(io.err, "ibbench: [%d/%d] %s\n", i+1, len(all), line)
		}
		err := m.cmd.run(ctx, io)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		got := exitCode(err, io)
		if got != exitOK {
			fmt.Fprintf(io.err, "ibbench: %s: line %d: exit code %d\n", c.Plan, m.Line, got)
		}
		code = max(code, got)
	}
	if code != exitOK {
		return codeError(code)
	}
	return nil
}

func (c *runCmd) read() ([]byte, error) {
	if c.Plan == "-" {
		return io.ReadAll(os.Stdin)
	}
	return os.ReadFile(c.Plan)
}

// steps are the measurements of a plan, each with its command line. All of them are checked before
// the first one begins.
func steps(ctx context.Context, io streams, text []byte) ([]planned, error) {
	p, err := planfile.Parse(text)
	if err != nil {
		return nil, err
	}
	model := syntax(new(cli), io, func(int) {}).Model.Node
	var all []planned
	var flags []map[string]*kong.Flag // by measurement
	for i := range p.Steps {
		m := planned{Step: &p.Steps[i]}
		node, err := m.node(model)
		if err != nil {
			return nil, err
		}
		all, flags = append(all, m), append(flags, flagsOf(node))
	}
	for _, s := range p.Common {
		if !slices.ContainsFunc(flags, func(of map[string]*kong.Flag) bool { return of[s.Key] != nil }) {
			return nil, planfile.At(s.Line, "no measurement of this plan has a setting %q; the nearest is %q", s.Key, nearestFlag(s.Key, flags))
		}
	}
	files := make(map[string]int)
	for i := range all {
		if err := all[i].complete(p.Common, flags[i]); err != nil {
			return nil, err
		}
		if err := all[i].check(ctx, io); err != nil {
			return nil, err
		}
		if err := all[i].claim(files, flags[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// node finds the command in the model of command lines.
func (m *planned) node(model *kong.Node) (*kong.Node, error) {
	n, words := model, []string{}
	for _, w := range m.Command {
		i := slices.IndexFunc(n.Children, func(c *kong.Node) bool { return c.Name == w })
		if i < 0 {
			break
		}
		n, words = n.Children[i], append(words, w)
	}
	var known []string
	for _, c := range n.Children {
		if !slices.Contains(notPlanned, c.Name) {
			known = append(known, c.Name)
		}
	}
	m.path = strings.Join(words, " ")
	switch {
	case slices.Contains(notPlanned, m.path):
		return nil, planfile.At(m.Line, "%s can be no part of a plan", m.path)
	case len(known) == 0:
		return n, nil
	case len(words) == len(m.Command):
		return nil, planfile.At(m.Line, "%s what? It has %s", m.path, strings.Join(known, ", "))
	}
	w := m.Command[len(words)]
	return nil, planfile.At(m.Line, "unknown command %q; the nearest is %q", w, nearest.Name(w, known))
}

// notPlanned are the commands that no plan has.
var notPlanned = []string{"run", "serve", "doctor", "flow hog"}

// flagsOf are the flags of a command by name, the other names included.
func flagsOf(n *kong.Node) map[string]*kong.Flag {
	all := make(map[string]*kong.Flag)
	for _, group := range n.AllFlags(true) {
		for _, f := range group {
			if f.Name == "help" || f.Name == "version" {
				continue
			}
			for _, name := range append([]string{f.Name}, f.Aliases...) {
				all[name] = f
			}
		}
	}
	return all
}

func nearestFlag(key string, flags []map[string]*kong.Flag) string {
	var names []string
	for _, of := range flags {
		for name := range of {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return nearest.Name(key, names)
}

// complete makes the command line.
func (m *planned) complete(common []planfile.Setting, flags map[string]*kong.Flag) error {
	m.args = slices.Clone(m.Command)
	own := make(map[*kong.Flag]bool)
	for _, s := range m.Settings {
		f := flags[s.Key]
		switch {
		case f == nil:
			return planfile.At(s.Line, "%s has no setting %q; the nearest is %q", m.path, s.Key, nearestFlag(s.Key, []map[string]*kong.Flag{flags}))
		case len(s.Values) == 0 && !slices.ContainsFunc(common, func(c planfile.Setting) bool { return flags[c.Key] == f }):
			return planfile.At(s.Line, "%s: an empty list takes back what [common] says, which is nothing", s.Key)
		case own[f]:
			return planfile.At(s.Line, "%s is set above already, as %s or by another of its names", s.Key, f.Name)
		}
		own[f] = true
		m.args = append(m.args, asFlags(f, s)...)
	}
	for _, s := range common {
		if f := flags[s.Key]; f != nil && !own[f] {
			m.args = append(m.args, asFlags(f, s)...)
		}
	}
	return nil
}

// asFlags writes a setting as on a command line.
func asFlags(f *kong.Flag, s planfile.Setting) (args []string) {
	values := s.Values
	if !f.IsSlice() && len(values) > 0 {
		values = []string{strings.Join(values, ",")}
	}
	for _, v := range values {
		args = append(args, "--"+f.Name+"="+v)
	}
	return args
}

// check finds wrong usage. Of reports and kernels of flow only the command line is checked.
func (m *planned) check(ctx context.Context, io streams) (err error) {
	if m.cmd, err = understand(m.args, io, func(int) {}); err != nil {
		return planfile.At(m.about(err), "%w", err)
	}
	io.check = true
	var usage usageError
	switch m.cmd.(type) {
	case *latCmd, *bwCmd, *rateCmd, *joinCmd, *heapCmd, *collCmd, *pairsCmd, *cacheCmd, *mrCmd, *perftestCmd:
		if err := m.cmd.run(ctx, io); errors.As(err, &usage) {
			return planfile.At(m.about(err), "%w", err)
		}
	}
	return nil
}

// about is the line of the setting that an error names, or of the measurement.
func (m *planned) about(err error) int {
	for _, s := range m.Settings {
		if strings.Contains(err.Error(), "--"+s.Key) {
			return s.Line
		}
	}
	return m.Line
}

// claim refuses a file that an earlier measurement writes.
func (m *planned) claim(files map[string]int, flags map[string]*kong.Flag) error {
	var paths []string
	for _, a := range m.args {
		if path, ok := strings.CutPrefix(a, "--output="); ok {
			paths = append(paths, filepath.Clean(path))
		}
	}
	if by := os.Getenv("IBBENCH_OUTPUT"); by != "" && len(paths) == 0 && flags["output"] != nil {
		paths = []string{filepath.Clean(by)}
	}
	for _, path := range paths {
		if line := files[path]; line != 0 {
			return planfile.At(m.Line, "%s would be overwritten: the measurement of line %d writes it, too; give each a file, ibbench report takes several", path, line)
		}
		files[path] = m.Line
	}
	return nil
}
