package bootstrap

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// environment reads the launcher's variables through an injected function.
type environment func(name string) (string, bool)

func (env environment) get(name string) string {
	v, _ := env(name)
	return v
}

func (env environment) has(names ...string) bool {
	for _, n := range names {
		if env.get(n) == "" {
			return false
		}
	}
	return true
}

func (env environment) any(names ...string) bool {
	for _, n := range names {
		if env.get(n) != "" {
			return true
		}
	}
	return false
}

// number reads a rank or a size.
func (env environment) number(name string) (int, error) {
	v := env.get(name)
	n, err := strconv.ParseUint(v, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%s=%q is not a number from 0 to %d", name, v, math.MaxInt32)
	}
	return int(n), nil
}

// joinHostPort takes an IPv6 address with or without brackets.
func joinHostPort(host, port string) string {
	host = strings.Trim(host, "[]")
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":" + port
}

func portAfter(port string) (string, error) {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || n == 65535 {
		return "", fmt.Errorf("port %q: need a number from 1 to 65534", port)
	}
	return strconv.FormatUint(n+1, 10), nil
}
