package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
)

const module = "github.com/ibconduit/conduit"

// tree is the project, or a planted one.
type tree struct {
	fset  *token.FileSet
	files map[string]string // text of every text file, by path
	pkgs  map[string]*pkg   // by path within the module; the root is "."

}

type pkg struct {
	path  string
	files []*file
}

type file struct {
	name string // with its folder
	ast  *ast.File
	test bool // _test.go
}

// imports returns the paths that the file imports; those of the module without its prefix.
func (f *file) imports() []string {
	var out []string
	for _, s := range f.ast.Imports {
		p, _ := strconv.Unquote(s.Path.Value)
		if p == module {
			p = "."
		}
		out = append(out, strings.TrimPrefix(p, module+"/"))
	}
	return out
}

// usesC says whether the file is compiled by cgo.
func (f *file) usesC() bool { return slices.Contains(f.imports(), "C") }

func (t *tree) sorted() []*pkg {
	var out []*pkg
	for _, p := range t.pkgs {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *pkg) int { return strings.Compare(a.path, b.path) })
	return out
}

// project is the project itself.
func project(t *testing.T) *tree {
	t.Helper()
	tr, err := readProject()
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// readProject reads once for all rules, which change nothing.
var readProject = sync.OnceValues(func() (*tree, error) { return read(os.DirFS("../..")) })

// plant makes a tree of the given files. A Go file may omit its package clause.
func plant(t *testing.T, files map[string]string) *tree {
	t.Helper()
	m := fstest.MapFS{}
	for name, text := range files {
		if strings.HasSuffix(name, ".go") && !strings.Contains("\n"+text, "\npackage ") {
			text = "package p\n" + text
		}
		m[name] = &fstest.MapFile{Data: []byte(text)}
	}
	tr, err := read(m)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func read(fsys fs.FS) (*tree, error) {
	tr := &tree{fset: token.NewFileSet(), files: map[string]string{}, pkgs: map[string]*pkg{}}
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if foreign(fsys, name, d.Name()) {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() || !isText(name) {
			return nil
		}
		text, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		tr.files[name] = string(text)
		if strings.HasSuffix(name, ".go") {
			return tr.addGo(name, text)
		}
		return nil
	})
	return tr, err
}

// foreign says whether a folder is none of the project's source: what make
// builds, other modules, what the go command ignores.
func foreign(fsys fs.FS, name, base string) bool {
	if name == "." {
		return false
	}
	if name == "build" || name == "bin" || base == "testdata" || base == ".git" || strings.HasPrefix(base, "_") {
		return true
	}
	_, err := fs.Stat(fsys, path.Join(name, "go.mod"))
	return err == nil
}

func isText(name string) bool {
	switch path.Ext(name) {
	case ".go", ".c", ".h", ".sh", ".md", ".mk", ".yaml", ".yml", ".toml", ".txt", ".svg", ".json", "":
		return true
	}
	return false
}

func (tr *tree) addGo(name string, text []byte) error {
	f, err := parser.ParseFile(tr.fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	dir := path.Dir(name)
	p := tr.pkgs[dir]
	if p == nil {
		p = &pkg{path: dir}
		tr.pkgs[dir] = p
	}
	p.files = append(p.files, &file{name: name, ast: f, test: strings.HasSuffix(name, "_test.go")})
	return nil
}

// check runs a rule on the project, and on planted trees in each of which it
// must find exactly what is named.
func check(t *testing.T, rule func(*tree) []string, planted ...planted) {
	t.Helper()
	t.Run("project", func(t *testing.T) {
		for _, v := range rule(project(t)) {
			t.Error(v)
		}
	})
	for _, p := range planted {
		t.Run("planted/"+p.name, func(t *testing.T) {
			got := rule(plant(t, p.files))
			if len(got) != len(p.want) {
				t.Fatalf("got %d violations, want %d:\n%s", len(got), len(p.want), strings.Join(got, "\n"))
			}
			for i, w := range p.want {
				if !strings.Contains(got[i], w) {
					t.Errorf("violation %d is %q, want it to say %q", i, got[i], w)
				}
			}
		})
	}
}

type planted struct {
	name  string
	files map[string]string
	want  []string // a part of each violation, in order; none: the tree is clean
}
