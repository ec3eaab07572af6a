// Command rdmatests prints which tests, benchmarks and examples of packages ask for an RDMA device,
// as a regular expression for go test -run and -bench. The others prove nothing in the VM that they
// have not proved, ten times faster, outside.
//
//	go test -run "$(rdmatests ./verbs ./cache)" -exec hack/softroce/vm ./verbs ./cache
//
// Arguments are directories. A test asks for a device if it mentions internal/rdmatest, FabricIBV,
// or a declaration of the package's tests that does, whatever is in between. Names are compared,
// not objects: a method may be taken for another one of its name, which costs time only.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	var all []string
	for _, dir := range os.Args[1:] {
		names, err := asking(dir)
		if err != nil {
			fmt.Fprintln(os.Stderr, "rdmatests:", err)
			os.Exit(1)
		}
		all = append(all, names...)
	}
	slices.Sort(all)
	if all = slices.Compact(all); len(all) == 0 {
		fmt.Fprintln(os.Stderr, "rdmatests: no test asks for a device")
		os.Exit(1)
	}
	fmt.Printf("^(%s)$\n", strings.Join(all, "|"))
}

var runs = regexp.MustCompile(`^(Test|Benchmark|Example|Fuzz)`)

// asking returns the names of the tests of a package that ask for a device.
func asking(dir string) (names []string, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	var decls []decl
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		decls = append(decls, declarations(f)...)
	}
	asks := map[string]bool{"rdmatest": true, "FabricIBV": true}
	for more := true; more; {
		more = false
		for _, d := range decls {
			if !slices.ContainsFunc(d.mentions, func(m string) bool { return asks[m] }) {
				continue
			}
			for _, name := range d.names {
				more = more || !asks[name]
				asks[name] = true
			}
		}
	}
	for name := range asks {
		if runs.MatchString(name) && name != "TestMain" {
			names = append(names, name)
		}
	}
	return names, nil
}

// decl is a declaration of a file: the names that it gives, and those that it uses.
type decl struct{ names, mentions []string }

func declarations(f *ast.File) (all []decl) {
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			all = append(all, decl{[]string{d.Name.Name}, mentioned(d)})
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.ValueSpec:
					var names []string
					for _, n := range s.Names {
						names = append(names, n.Name)
					}
					all = append(all, decl{names, mentioned(s)})
				case *ast.TypeSpec:
					all = append(all, decl{[]string{s.Name.Name}, mentioned(s)})
				}
			}
		}
	}
	return all
}

func mentioned(n ast.Node) (names []string) {
	ast.Inspect(n, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && id.Name != "_" {
			names = append(names, id.Name)
		}
		return true
	})
	return names
}
