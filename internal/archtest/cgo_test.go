package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// cgoPackages are the only ones with C in them.
var cgoPackages = []string{"verbs", "memevents", "internal/memtest", "internal/pmix"}

// cgoFlags are what all C is compiled with; hack/lint.sh has them too.
var cgoFlags = []string{"-std=c11", "-Wall", "-Wextra", "-Werror"}

func cgoRule(tr *tree) (violations []string) {
	for _, p := range tr.sorted() {
		directives, uses := "", false
		for _, f := range p.files {
			if !f.usesC() {
				continue
			}
			uses = true
			if !slices.Contains(cgoPackages, p.path) {
				violations = append(violations, fmt.Sprintf("%s: cgo is for %s only", f.name, strings.Join(cgoPackages, ", ")))
			}
			for line := range strings.Lines(tr.files[f.name]) {
				line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "//"))
				if strings.HasPrefix(line, "#cgo CFLAGS:") {
					directives += line + " "
				}
			}
		}
		for _, flag := range cgoFlags {
			if uses && !slices.Contains(strings.Fields(directives), flag) {
				violations = append(violations, fmt.Sprintf("package %s: no #cgo CFLAGS line has %s", p.path, flag))
			}
		}
	}
	return violations
}

func TestCgoStaysInItsPackages(t *testing.T) {
	const flags = "// #cgo CFLAGS: -std=c11 -Wall -Wextra -Werror\nimport \"C\"\n"
	check(t, cgoRule,
		planted{name: "elsewhere", files: map[string]string{"am/a.go": flags}, want: []string{"am/a.go: cgo is for verbs"}},
		planted{
			name:  "elsewhere, behind a tag",
			files: map[string]string{"am/a.go": "//go:build special\n\npackage am\n" + flags},
			want:  []string{"am/a.go: cgo is for verbs"},
		},
		planted{name: "lax flags", files: map[string]string{"verbs/a.go": "// #cgo CFLAGS: -std=c11 -Wall -Wextra\nimport \"C\"\n"}, want: []string{"-Werror"}},
		planted{name: "in its place", files: map[string]string{"verbs/a.go": flags, "verbs/b.go": `import "C"`}},
	)
}

// cTypeRule: no exported declaration of a cgo package mentions a type of C, be it
// through a name of the package itself. No other package could use it.
func cTypeRule(tr *tree) (violations []string) {
	for _, p := range tr.sorted() {
		if !slices.ContainsFunc(p.files, (*file).usesC) {
			continue
		}
		c := &cTypes{aliases: map[string]bool{}}
		for again := true; again; { // an alias of an alias
			again = false
			for _, f := range p.files {
				again = c.learn(f.ast) || again
			}
		}
		for _, f := range p.files {
			if f.test {
				continue
			}
			for _, d := range f.ast.Decls {
				for _, bad := range c.exported(d) {
					violations = append(violations, fmt.Sprintf("%s: exported %s shows a type of C", tr.fset.Position(bad.Pos()), bad.Name))
				}
			}
		}
	}
	return violations
}

// cTypes knows the names that stand for a type of C within one package: aliases,
// and unexported structs that embed one.
type cTypes struct{ aliases map[string]bool }

func (c *cTypes) learn(f *ast.File) (more bool) {
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.TYPE {
			continue
		}
		for _, s := range g.Specs {
			ts := s.(*ast.TypeSpec)
			if ts.Assign.IsValid() && !c.aliases[ts.Name.Name] && c.mentions(ts.Type) {
				c.aliases[ts.Name.Name] = true
				more = true
			}
		}
	}
	return more
}

// mentions says whether a type expression contains a type of C where others see
// it: unexported fields and methods do not count.
func (c *cTypes) mentions(e ast.Node) (found bool) {
	if e == nil {
		return false
	}
	ast.Inspect(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if id, ok := n.X.(*ast.Ident); ok && id.Name == "C" {
				found = true
			}
			return false
		case *ast.Ident:
			if c.aliases[n.Name] || strings.HasPrefix(n.Name, "_Ctype_") {
				found = true
			}
		case *ast.StructType:
			found = found || c.fields(n.Fields)
			return false
		case *ast.InterfaceType:
			found = found || c.fields(n.Methods)
			return false
		}
		return !found
	})
	return found
}

func (c *cTypes) fields(l *ast.FieldList) bool {
	for _, f := range l.List {
		visible := len(f.Names) == 0 || slices.ContainsFunc(f.Names, (*ast.Ident).IsExported)
		if visible && c.mentions(f.Type) {
			return true
		}
	}
	return false
}

// exported returns the exported names of a declaration that show a type of C.
func (c *cTypes) exported(d ast.Decl) (bad []*ast.Ident) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && c.mentions(d.Type) {
			bad = append(bad, d.Name)
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() && (c.mentions(s.Type) || s.TypeParams != nil && c.mentions(s.TypeParams)) {
					bad = append(bad, s.Name)
				}
			case *ast.ValueSpec:
				for i, n := range s.Names {
					if n.IsExported() && (s.Type != nil && c.mentions(s.Type) || i < len(s.Values) && c.typed(s.Values[i])) {
						bad = append(bad, n)
					}
				}
			}
		}
	}
	return bad
}

// typed says whether an initializer gives its variable a type of C: a conversion
// to one or a call of a C function. (A constant of C is an untyped one of Go.)
func (c *cTypes) typed(v ast.Expr) bool {
	call, ok := v.(*ast.CallExpr)
	return ok && c.mentions(call.Fun)
}

func TestNoCTypeIsExported(t *testing.T) {
	in := func(name, body string, want ...string) planted {
		return planted{name: name, files: map[string]string{"verbs/a.go": "import \"C\"\n" + body}, want: want}
	}
	check(t, cTypeRule,
		in("parameter", "func F(x *C.struct_ibv_qp) {}", "exported F"),
		in("result", "func F() (n C.int, err error) { return }", "exported F"),
		in("method", "type t struct{}\nfunc (t) M(x []C.char) {}", "exported M"),
		in("field", "type T struct{ F C.int }", "exported T"),
		in("embedded", "type T struct{ C.struct_ibv_wc }", "exported T"),
		in("map of functions", "var V map[string]func(C.int)", "exported V"),
		in("interface", "type I interface{ M(C.int) }", "exported I"),
		in("underlying", "type Op C.enum_ibv_wr_opcode", "exported Op"),
		in("through an alias", "type wc = C.struct_ibv_wc\ntype entry = wc\nfunc F() []entry { return nil }", "exported F"),
		in("generated name", "func F(x _Ctype_int) {}", "exported F"),
		in("conversion", "var V = C.int(3)", "exported V"),
		in("type parameter", "type T[P C.int] struct{}", "exported T"),
		in("hidden from others", "type T struct { qp *C.struct_ibv_qp }\nfunc f(C.int) {}\nconst N = C.IBV_QPT_RC\n"+
			"func F(x *T) int { return int(C.f(x.qp)) }\ntype wc = C.struct_ibv_wc\nvar v wc"),
	)
}

// rdmaRule: tests that need a device ask internal/rdmatest for it, since that is
// how make test finds the packages to run in the VM.
func rdmaRule(tr *tree) (violations []string) {
	for _, p := range tr.sorted() {
		if matches("hack/...", p.path) || p.path == "internal/rdmatest" || p.path == "internal/archtest" {
			continue
		}
		asks, finds := "", false
		for _, f := range p.files {
			if !f.test {
				continue
			}
			if strings.Contains(tr.files[f.name], "IBCONDUIT_REQUIRE_RDMA") {
				asks = f.name
			}
			finds = finds || slices.Contains(f.imports(), "internal/rdmatest")
		}
		if asks != "" && !finds {
			violations = append(violations, asks+": uses IBCONDUIT_REQUIRE_RDMA by itself: find the device with internal/rdmatest, or make test will not run this package in the VM")
		}
	}
	return violations
}

func TestDevicesAreFoundInOneWay(t *testing.T) {
	const reads = `import "os"` + "\nvar x = os.Getenv(\"IBCONDUIT_REQUIRE_RDMA\")"
	check(t, rdmaRule,
		planted{name: "by itself", files: map[string]string{"verbs/a_test.go": reads}, want: []string{"verbs/a_test.go"}},
		planted{name: "by rdmatest", files: map[string]string{"verbs/a_test.go": reads, "verbs/b_test.go": `import _ "` + module + `/internal/rdmatest"`}},
	)
}
