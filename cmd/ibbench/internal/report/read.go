package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/plan"
)

// Read returns the series of a file that Create has written as .json or .ndjson.
func Read(path string) ([]*Series, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var all []*Series
	if text = bytes.TrimSpace(text); bytes.HasPrefix(text, []byte("[")) {
		err = json.Unmarshal(text, &all)
	} else {
		for d := json.NewDecoder(bytes.NewReader(text)); err == nil; {
			s := new(Series)
			if err = d.Decode(s); err == nil {
				all = append(all, s)
			}
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: no results of ibbench as JSON (-o FILE.json or .ndjson writes them): %w", path, err)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: no results: nothing had been measured when it was written", path)
	}
	for i, s := range all {
		if s != nil {
			s.File = path
		}
		switch {
		case s == nil || s.Schema == "" || s.Env == nil:
			return nil, fmt.Errorf("%s: object %d is no result of ibbench: it lacks schema or env", path, i+1)
		case s.Schema != Schema:
			return nil, fmt.Errorf("%s: object %d has the schema %q; this ibbench reads %q", path, i+1, s.Schema, Schema)
		}
		if err := s.damage(); err != nil {
			return nil, fmt.Errorf("%s: object %d is damaged: %w", path, i+1, err)
		}
	}
	return all, nil
}

// needed is the metric that a kind's tables cannot do without.
var needed = map[string]string{
	plan.MR: "mr.registrar", plan.Cache: "cache.side", plan.Flow: "flow.arm", KindPerftest: "ratio.mean",
}

// damage finds a result without the metrics of its kind.
func (s *Series) damage() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("it cannot be drawn: %v", r)
		}
	}()
	if name := needed[s.Kind]; name != "" && !s.Has(name) {
		return fmt.Errorf("it lacks %s", name)
	}
	if s.Kind == KindPerftest && (s.Peer() == nil || s.Peer().Place != "perftest") {
		return errors.New("it lacks perftest")
	}
	return NewPage("", []*Series{s}).Write(io.Discard)
}
