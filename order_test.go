package conduit

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
)

// Where a peer's segment is mapped, an access is a plain store or load, which some processors
// reorder; this machine's may not be one of them, so the source is looked at: behind each such
// check of the address stands the barrier's condition, or store or load, which have it.
func TestMappedAccessesAreOrdered(t *testing.T) {
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	var seen int
	for _, f := range files {
		if name := f.Name(); strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") {
			seen += checkOrder(t, name)
		}
	}
	if seen < 9 {
		t.Errorf("%d accesses to mapped segments found, there are at least 9", seen)
	}
}

// checkOrder returns how many accesses a file has.
func checkOrder(t *testing.T, name string) (seen int) {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		ordered := []string{"shm.Reorders", "store", "load"}
		var body ast.Node
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Recv == nil && (n.Name.Name == "store" || n.Name.Name == "load") {
				body, ordered = n.Body, ordered[:1]
			}
		case *ast.IfStmt:
			if n.Init != nil && mentions(n.Init, "w.mapped") {
				body = n.Body
			}
		}
		if body != nil {
			seen++
			if !mentions(body, ordered...) {
				t.Errorf("%s: an access to a mapped segment without shm.Reorders", fset.Position(n.Pos()))
			}
		}
		return true
	})
	return seen
}

// mentions reports whether one of the names, x or x.y, is in n.
func mentions(n ast.Node, names ...string) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		text := ""
		switch n := n.(type) {
		case *ast.Ident:
			text = n.Name
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok {
				text = x.Name + "." + n.Sel.Name
			}
		}
		for _, name := range names {
			found = found || text == name
		}
		return true
	})
	return found
}
