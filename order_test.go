package conduit

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
)

// Where a peer's segment is mapped, an access is a plain store or load, which some processors reorder; this machine's may not be one
// of them, so the source is looked at: behind each such check of the address stands the barrier's condition, unless the access is
// left to a function of its own.
func TestAccessesToMappedSegmentsAreOrdered(t *testing.T) {
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
	if seen < 7 {
		t.Errorf("%d accesses to mapped segments found, there are at least 7", seen)
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
		stmt, ok := n.(*ast.IfStmt)
		if !ok || !calls(stmt.Init, "w", "at") {
			return true
		}
		seen++
		if !mentions(stmt.Body, "shm", "Reorders") {
			t.Errorf("%s: an access to a mapped segment without shm.Reorders", fset.Position(stmt.Pos()))
		}
		return true
	})
	return seen
}

func calls(n ast.Node, pkg, name string) bool {
	if n == nil {
		return false
	}
	found := false
	ast.Inspect(n, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		found = found || ok && isSelector(call.Fun, pkg, name)
		return true
	})
	return found
}

func mentions(n ast.Node, pkg, name string) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		e, ok := n.(ast.Expr)
		found = found || ok && isSelector(e, pkg, name)
		return true
	})
	return found
}

func isSelector(e ast.Expr, pkg, name string) bool {
	s, ok := e.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != name {
		return false
	}
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name == pkg
}
