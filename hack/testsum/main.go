// Command testsum makes the output of go test -json fit to be read in a log, and counts.
//
//	go test -json ./... | testsum -stage race -o build/test/race.json
//	testsum -total build/test/*.json
//
// With -may-skip a test that skips and stands in none of the files has failed.
// They have a line a test: its package, "." for the root, its name, and why.
//
// The first form prints one line a package, everything a failing test wrote,
// and nothing of what passed; its exit status is 1 if anything failed or if no
// package was tested at all. The second merges the results of several stages: a
// test counts once, as failed if it failed in any stage, as passed if it passed
// in one, as skipped if no stage ran it. It names the slowest, the failed and the skipped,
// and its last line is
//
//	N passed, N failed, N skipped
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	stage := flag.String("stage", "", "name of the stage, printed before each line")
	out := flag.String("o", "", "file to write the results of the stage to")
	mayskip := flag.String("may-skip", "", "files of tests that may skip, with commas between them; none: all may")
	total := flag.Bool("total", false, "merge the result files given as arguments")
	flag.Parse()

	run := func() (bool, error) { return runStage(os.Stdin, os.Stdout, *stage, *out, *mayskip) }
	if *total {
		run = func() (bool, error) { return runTotal(os.Stdout, flag.Args()) }
	}
	ok, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
	}
	if !ok || err != nil {
		os.Exit(1)
	}
}
