package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestTestsThatAskForADeviceAreFound(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a_test.go": `
func TestMain(m *testing.M)     { rdmatest.Device(nil) }
func TestAsks(t *testing.T)     { rdmatest.Device(t) }
func TestByOthers(t *testing.T) { fabrics(t) }
func TestOther(t *testing.T)    { t.Log("rdmatest", "fabrics") }
func BenchmarkA(b *testing.B)   { b.Run("x", func(b *testing.B) { new(world).open() }) }
func TestTable(t *testing.T)    { for range cases {} }
func TestTyped(t *testing.T)    { var _ holder }
func TestNetwork(t *testing.T)  { run(conduit.FabricIBV) }
func ExampleWorld()             {}
func TestLocal(t *testing.T)    { few.close() }
`,
		"b_test.go": `
func fabrics(t *testing.T) { device(t) }
func device(t *testing.T) string { return rdmatest.Device(t) }
func (world) open() { device(nil) }
func (world) close() {}
var cases, few = []func(*testing.T){fabrics}, world{}
type holder struct{ f field }
type field func() rdmatest.Kind
`,
		"c.go": "func TestNoTest() { rdmatest.Device(nil) }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("package a\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	names, err := asking(dir)
	slices.Sort(names)
	if got, want := strings.Join(names, " "), "BenchmarkA TestAsks TestByOthers TestLocal TestNetwork TestTable TestTyped"; got != want || err != nil {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
}

func TestAFileThatDoesNotParseIsAnError(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a_test.go"), []byte("package"), 0o600); err != nil {
		t.Fatal(err)
	}
	if names, err := asking(dir); err == nil {
		t.Errorf("%v", names)
	}
}
