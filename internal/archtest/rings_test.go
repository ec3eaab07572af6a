package archtest

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// rings are the packages in which files call each other in a ring, and how many files the largest
// ring of each has. In all others the calls between files go one way. A number only goes down.
var rings = map[string]int{
	".": 6, "am": 11, "internal/bench": 2, "cache": 7, "internal/fencecheck": 2,
	"cmd/ibbench/internal/doctor": 7, "cmd/ibbench/internal/measure": 2, "cmd/ibbench/internal/mr": 4,
	"cmd/ibbench/internal/peer": 2,
	"internal/fabric/ibv":       2, "internal/fabric/shm": 2, "internal/fabric/sim": 3,
	"internal/mux": 2, "internal/pagepool": 2, "internal/transient": 4, "memevents": 2, "regcache": 7,
	"flow": 6, "segment": 4, "internal/alloc": 2, "internal/heap": 2,
}

// maxPromoted is how many methods of its own package a type has at most, those of embedded types
// included.
const maxPromoted = 60

// typed is a package, without its tests, as it is built on this machine.
type typed struct {
	path  string
	files []*ast.File
	pkg   *types.Package
	info  *types.Info
}

// checker checks types. Packages of the tree are checked from their source; others come from the
// export data of the go command.
type checker struct {
	tree    *tree
	planted bool // all files are built
	others  types.Importer
	done    map[string]*typed
}

// Import implements types.Importer.
func (c *checker) Import(p string) (*types.Package, error) {
	if !inModule(p, module) {
		return c.others.Import(p)
	}
	p = cmp.Or(strings.TrimPrefix(strings.TrimPrefix(p, module), "/"), ".")
	if c.tree.pkgs[p] == nil {
		return nil, fmt.Errorf("there is no package %s", p)
	}
	return c.check(p).pkg, nil
}

func (c *checker) check(p string) *typed {
	if t := c.done[p]; t != nil {
		return t
	}
	t := &typed{path: p, info: &types.Info{Uses: map[*ast.Ident]types.Object{}}}
	host := build.Default
	host.CgoEnabled = true
	for _, f := range c.tree.pkgs[p].files {
		if f.test {
			continue
		}
		if built, _ := host.MatchFile(filepath.Join("..", "..", p), path.Base(f.name)); built || c.planted {
			t.files = append(t.files, f.ast)
		}
	}
	// The types of C are unknown, and what follows from that; errors are the compiler's to find.
	cfg := types.Config{Importer: c, FakeImportC: true, Error: func(error) {}}
	t.pkg, _ = cfg.Check(p, c.tree.fset, t.files, t.info)
	c.done[p] = t
	return t
}

func checkAll(tr *tree, planted bool) (all []*typed, err error) {
	export := map[string]string{} // file, by import path
	if !planted {
		args := []string{"list", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}"}
		for _, p := range tr.pkgs {
			for _, f := range p.files {
				for _, i := range f.imports() {
					if std := !strings.Contains(i, ".") && tr.pkgs[i] == nil; !f.test && i != "C" && (std || thirdParty(i)) {
						args = append(args, i)
					}
				}
			}
		}
		slices.Sort(args[5:])
		cmd := exec.Command("go", slices.Compact(args)...)
		cmd.Dir = filepath.Join("..", "..")
		out, err := cmd.Output()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			return nil, fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		for line := range strings.Lines(string(out)) {
			p, file, _ := strings.Cut(strings.TrimSpace(line), "\t")
			export[p] = file
		}
	}
	c := &checker{tree: tr, planted: planted, done: map[string]*typed{}}
	c.others = importer.ForCompiler(tr.fset, "gc", func(p string) (io.ReadCloser, error) { return os.Open(export[p]) })
	for _, p := range tr.sorted() {
		if !support(p.path) {
			all = append(all, c.check(p.path))
		}
	}
	return all, nil
}

// checkProject checks once for all rules.
var checkProject = sync.OnceValues(func() ([]*typed, error) {
	tr, err := readProject()
	if err != nil {
		return nil, err
	}
	return checkAll(tr, false)
})

// typesOf are the packages of a tree, but for those that serve tests.
func typesOf(tr *tree) ([]*typed, error) {
	if own, _ := readProject(); tr == own {
		return checkProject()
	}
	return checkAll(tr, true)
}

// ringRule: the ring of calls between a package's files is as large as rings says.
func ringRule(tr *tree) (violations []string) {
	all, err := typesOf(tr)
	if err != nil {
		return []string{err.Error()}
	}
	for _, p := range all {
		ring := p.ring(tr.fset)
		if has, most := len(ring), rings[p.path]; has != most {
			violations = append(violations, fmt.Sprintf("package %s: %d files call each other in a ring, want %d as in rings, or less and a smaller number there: %s",
				p.path, has, most, strings.Join(ring, " ")))
		}
	}
	return violations
}

// ring is the largest set of files each of which calls all the others, by way of others perhaps.
func (p *typed) ring(fset *token.FileSet) (largest []string) {
	in := func(pos token.Pos) string { return path.Base(fset.Position(pos).Filename) }
	calls := map[string]map[string]bool{}
	for id, o := range p.info.Uses {
		if f, ok := o.(*types.Func); ok && f.Pkg() == p.pkg && in(id.Pos()) != in(f.Pos()) {
			from := in(id.Pos())
			if calls[from] == nil {
				calls[from] = map[string]bool{}
			}
			calls[from][in(f.Pos())] = true
		}
	}
	reached := map[string]map[string]bool{} // by file: those that it calls, on whatever way
	for _, from := range slices.Sorted(maps.Keys(calls)) {
		seen := map[string]bool{}
		for next := slices.Collect(maps.Keys(calls[from])); len(next) > 0; {
			f := next[len(next)-1]
			if next = next[:len(next)-1]; !seen[f] {
				seen[f] = true
				next = slices.AppendSeq(next, maps.Keys(calls[f]))
			}
		}
		reached[from] = seen
	}
	for from, to := range reached {
		var ring []string
		for f := range to {
			if reached[f][from] {
				ring = append(ring, f)
			}
		}
		if len(ring) > len(largest) {
			largest = ring
		}
	}
	slices.Sort(largest)
	return largest
}

func TestCallsBetweenFilesGoOneWay(t *testing.T) {
	check(t, ringRule,
		planted{
			name: "a ring",
			files: map[string]string{
				"x/a.go": "func A() { B() }", "x/b.go": "type T int\nfunc B() { T(0).c() }", "x/c.go": "func (T) c() { _ = A }", "x/d.go": "func D() { A() }",
			},
			want: []string{"package x: 3 files call each other in a ring, want 0 as in rings, or less and a smaller number there: a.go b.go c.go"},
		},
		planted{
			name: "one way, in one file, by types, in tests",
			files: map[string]string{
				"x/a.go": "type A struct{ B }\nfunc f() { g() }\nfunc g() { f(); h() }", "x/b.go": "type B struct{ *A }\nfunc h() {}", "x/a_test.go": "func i() { f() }",
			},
		},
	)
}

// towerRule: no type has many methods by way of what it embeds.
func towerRule(tr *tree) (violations []string) {
	all, err := typesOf(tr)
	if err != nil {
		return []string{err.Error()}
	}
	for _, p := range all {
		for _, name := range p.pkg.Scope().Names() {
			o, ok := p.pkg.Scope().Lookup(name).(*types.TypeName)
			if !ok || o.IsAlias() {
				continue
			}
			n, of := 0, types.NewMethodSet(types.NewPointer(o.Type()))
			for i := range of.Len() {
				if of.At(i).Obj().Pkg() == p.pkg {
					n++
				}
			}
			if n > maxPromoted {
				violations = append(violations, fmt.Sprintf("package %s: %s has %d methods with those of embedded types, want %d: name the fields", p.path, name, n, maxPromoted))
			}
		}
	}
	return violations
}

func TestTypesEmbedNoTowers(t *testing.T) {
	methods := func(n int, of string) (text string) {
		for i := range n {
			text += fmt.Sprintf("func (*%s) %s%d() {}\n", of, of, i)
		}
		return text
	}
	three := "type a struct{}\ntype b struct{ a }\ntype c struct{ %s }\n" + methods(30, "a") + methods(30, "b") + methods(1, "c")
	check(t, towerRule,
		planted{name: "a tower", files: map[string]string{"x/a.go": fmt.Sprintf(three, "b")}, want: []string{"package x: c has 61 methods"}},
		planted{name: "a named field", files: map[string]string{"x/a.go": fmt.Sprintf(three, "b b")}},
	)
}
