package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// failedCell is what a table has of a run that failed: killed, where the kernel ended it for want
// of memory, and ** as in the paper where it took too long, or else has no result.
func failedCell(why string) string {
	if strings.Contains(why, syscall.SIGKILL.String()) {
		return "killed"
	}
	return "**"
}

// write writes a report to standard output and to the files of -o, each in its format. svg draws
// it, if there is such a function.
func (c *flowOutput) write(out io.Writer, report any, text func() string, rows func() [][]string, svg ...func() string) error {
	to := func(w io.Writer, format string) error {
		switch format {
		case "json":
			e := json.NewEncoder(w)
			e.SetIndent("", "  ")
			return e.Encode(report)
		case "csv":
			return csv.NewWriter(w).WriteAll(rows())
		case "svg":
			if len(svg) > 0 {
				_, err := io.WriteString(w, svg[0]())
				return err
			}
		case "text", "txt":
			_, err := io.WriteString(w, text())
			return err
		}
		return usageError{fmt.Errorf("-o: no format %q; there are .txt, .json and .csv, and of some kernels .svg", format)}
	}
	err := to(out, c.Format)
	for _, name := range c.Output {
		var text bytes.Buffer
		if failed := to(&text, strings.TrimPrefix(filepath.Ext(name), ".")); failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		err = errors.Join(err, os.WriteFile(name, text.Bytes(), 0o666))
	}
	return err
}
