package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/internal/atomicfile"
	"github.com/ibconduit/conduit/internal/errtext"
)

// reportCmd is ibbench report.
type reportCmd struct {
	Results []string `arg:"" help:"Results, .json or .ndjson, as -o of the other commands writes them."`
	Output  string   `short:"o" required:"" placeholder:"FILE" help:"The page to write, .html."`
	Title   string   `default:"ibbench report" placeholder:"TEXT" help:"Heading of the page. Default: ibbench report."`
}

func (c *reportCmd) run(_ context.Context, io streams) (err error) {
	if ext := strings.ToLower(filepath.Ext(c.Output)); ext != ".html" && ext != ".htm" {
		return usageError{fmt.Errorf("-o %s: a report is a page, FILE.html", c.Output)}
	}
	var all []*report.Series
	for _, path := range c.Results {
		some, err := report.Read(path)
		if err != nil {
			return usageError{err}
		}
		all = append(all, some...)
	}
	page := report.NewPage(c.Title, all)
	f, err := atomicfile.Create(c.Output, 0o666)
	if err != nil {
		return fmt.Errorf("-o: %w", err)
	}
	if err := page.Write(f); err != nil {
		f.Discard()
		return fmt.Errorf("-o: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("-o: %w", err)
	}
	_, err = fmt.Fprintf(io.out, "%s: %s in %s\n", c.Output, errtext.Count(len(all), "result"),
		errtext.Count(len(page.Sections), "section"))
	return err
}
