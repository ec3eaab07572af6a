package verbs

import (
	"os"
	"path/filepath"
	"testing"
)

func TestSysfsSaysWhatAGIDIs(t *testing.T) {
	root := t.TempDir()
	for file, text := range map[string]string{
		"types/0": "IB/RoCE v1\n", "ndevs/0": "eth1\n",
		"types/1": "RoCE v2\n", "ndevs/1": "eth1\n",
		"types/2": "IB/RoCE v1\n", // of InfiniBand: without an interface
	} {
		path := filepath.Join(root, "mlx5_0", "ports", "2", "gid_attrs", file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		link  LinkLayer
		index int
		want  GIDEntry
		ok    bool
	}{
		{LinkEthernet, 0, GIDEntry{Index: 0, Type: GIDTypeRoCEv1, Netdev: "eth1"}, true},
		{LinkEthernet, 1, GIDEntry{Index: 1, Type: GIDTypeRoCEv2, Netdev: "eth1"}, true},
		{LinkInfiniBand, 2, GIDEntry{Index: 2, Type: GIDTypeIB}, true},
		{LinkEthernet, 3, GIDEntry{}, false}, // it has become empty
	} {
		got, ok := gidAttrs(root, "mlx5_0", &PortAttr{Port: 2, LinkLayer: c.link}, c.index)
		if got != c.want || ok != c.ok {
			t.Errorf("entry %d on %s: %+v %t, want %+v %t", c.index, c.link, got, ok, c.want, c.ok)
		}
	}
}
