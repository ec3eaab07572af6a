package main

import (
	"slices"
	"strings"
)

// mpi are options as users of other launchers write them.
var mpi = map[string]string{"-np": "-n", "--np": "-n", "--n": "-n", "-host": "--host", "-hosts": "--host",
	"--hosts": "--host", "-hostfile": "--hostfile", "-machinefile": "--hostfile", "--machinefile": "--hostfile"}

// valued are options with a value of its own behind them.
var valued = []string{"-n", "--ranks", "-H", "--host", "--hostfile", "-x", "--env", "--output", "--bind-to",
	"--timeout", "--grace"}

// words are the arguments of one program of a job: ibrun's, and then its own, unchanged.
type words struct{ ours, program []string }

// options are the words that the parser sees: the program is only there or not.
func (w words) options() []string {
	if len(w.program) == 0 {
		return w.ours
	}
	return append(slices.Clone(w.ours), "--", "program")
}

// split takes mpi's options for ours, and divides the arguments at a colon that stands alone. What
// follows a program is the program's.
func split(args []string) []words {
	args = slices.Clone(args)
	i := 0
	for ; i < len(args) && strings.HasPrefix(args[i], "-") && args[i] != "--"; i++ {
		if ours, ok := mpi[args[i]]; ok {
			args[i] = ours
		}
		if slices.Contains(valued, args[i]) {
			i++
		}
	}
	i = min(i, len(args))
	if i < len(args) && args[i] == "--" {
		return []words{{args[:i], args[i+1:]}}
	}
	if n := slices.Index(args[i:], ":"); n >= 0 {
		return append([]words{{args[:i], args[i : i+n]}}, split(args[i+n+1:])...)
	}
	return []words{{args[:i], args[i:]}}
}
