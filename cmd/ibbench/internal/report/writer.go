package report

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ibconduit/conduit/internal/atomicfile"
)

// Writer takes series as they are measured. Close writes what comes last; it
// does not close the file.
type Writer interface {
	Add(*Series) error
	Close() error
}

// Formats that New knows.
var Formats = []string{"text", "json", "ndjson", "csv", "bench"}

// New returns the writer of a format. pct are the percentiles to show, of
// which a series may have more.
func New(format string, w io.Writer, pct []float64) (Writer, error) {
	switch format {
	case "text":
		return &text{w: w, pct: pct}, nil
	case "json", "ndjson":
		return &jsonWriter{w: w, array: format == "json"}, nil
	case "csv":
		return newCSV(w, pct), nil
	case "bench":
		return &bench{w: w, pct: pct}, nil
	}
	return nil, fmt.Errorf("format %q: want one of %s", format, strings.Join(Formats, ", "))
}

// suffixes of file names and the formats that they stand for.
var suffixes = map[string]string{".json": "json", ".ndjson": "ndjson", ".csv": "csv", ".txt": "text", ".bench": "bench"}

// FormatOf is a file's format by its suffix.
func FormatOf(path string) (string, error) {
	if f, ok := suffixes[strings.ToLower(filepath.Ext(path))]; ok {
		return f, nil
	}
	return "", fmt.Errorf("-o %s: the suffix says the format; these exist: %s", path,
		strings.Join(slices.Sorted(maps.Keys(suffixes)), " "))
}

// File is a writer into a file of its own, which has all of the results when it is closed. What a
// file has is kept until then, and where there is no result or not all can be written.
type File struct {
	Writer
	f     *atomicfile.File
	keeps bool // what it had, since there is nothing else
	lost  bool // a series could not be written, and Add has said so
}

// Create finds out whether a file can be written, in the format of its suffix.
func Create(path string, pct []float64) (*File, error) {
	format, err := FormatOf(path)
	if err != nil {
		return nil, err
	}
	f, err := atomicfile.Create(path, 0o666)
	if err != nil {
		return nil, err
	}
	w, err := New(format, f, pct)
	had, none := os.Stat(path)
	return &File{Writer: w, f: f, keeps: none == nil && had.Mode().IsRegular() && had.Size() > 0}, err
}

// Add writes a series. Where that fails the file will be as it was, and no further one is tried.
func (f *File) Add(s *Series) error {
	if f.lost {
		return nil
	}
	f.keeps = false
	err := f.Writer.Add(s)
	if f.lost = err != nil; f.lost {
		f.f.Discard()
	}
	return err
}

// Close writes the rest and closes the file.
func (f *File) Close() error {
	if f.keeps || f.lost {
		return nil
	}
	err := f.Writer.Close()
	return cmp.Or(f.f.Close(), err)
}

// Tee gives every series to several writers.
type Tee []Writer

// Add gives s to all.
func (t Tee) Add(s *Series) (err error) {
	for _, w := range t {
		err = errors.Join(err, w.Add(s))
	}
	return err
}

// Close closes all.
func (t Tee) Close() (err error) {
	for _, w := range t {
		err = errors.Join(err, w.Close())
	}
	return err
}
