package rdmatest

import (
	"strings"
	"testing"
)

func TestFindPrefersTheNamedDeviceThenASoftwareOne(t *testing.T) {
	env := func(v string) func(string) string {
		return func(k string) string {
			if k == EnvDevice {
				return v
			}
			return ""
		}
	}
	for _, c := range []struct {
		named   string
		devices []string
		want    string
		why     string
	}{
		{"", []string{"mlx5_0", "rxe0"}, "rxe0", ""},
		{"", []string{"mlx5_0", "mlx5_1"}, "mlx5_0", ""},
		{"mlx5_1", []string{"mlx5_0", "mlx5_1", "rxe0"}, "mlx5_1", ""},
		{"mlx5_9", []string{"mlx5_0"}, "", "mlx5_9"},
		{"", nil, "", "no RDMA device"},
	} {
		got, why := find(env(c.named), c.devices)
		if got != c.want || !strings.Contains(why, c.why) {
			t.Errorf("%q of %v: got %q (%s), want %q (%s)", c.named, c.devices, got, why, c.want, c.why)
		}
	}
}
