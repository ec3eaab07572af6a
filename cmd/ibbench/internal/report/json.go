package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// MarshalJSON writes the schema ibbench/1: what all points have, then metrics and peers, each
// at its place.
func (s *Series) MarshalJSON() ([]byte, error) {
	type plain Series
	text, err := json.Marshal((*plain)(s))
	if err != nil {
		return nil, err
	}
	tree := make(map[string]any)
	for _, d := range declared {
		if m, ok := s.Metrics[d.name]; ok {
			place(tree, d.name, d.encode(m))
		}
	}
	for _, p := range s.Peers {
		tree[p.Place] = p
	}
	more, err := json.Marshal(tree)
	if err != nil || len(tree) == 0 {
		return text, err
	}
	return append(append(text[:len(text)-1], ','), more[1:]...), nil
}

// place puts a value where a name with dots says.
func place(tree map[string]any, name string, v any) {
	for {
		object, rest, nested := strings.Cut(name, ".")
		if !nested {
			tree[name] = v
			return
		}
		if tree[object] == nil {
			tree[object] = make(map[string]any)
		}
		tree, name = tree[object].(map[string]any), rest
	}
}

// UnmarshalJSON reads what MarshalJSON of this and earlier versions has written.
func (s *Series) UnmarshalJSON(text []byte) error {
	type plain Series
	var parts struct {
		*plain
		Perftest *Peer `json:"perftest"`
		MPI      *Peer `json:"mpi"`
		UCX      *Peer `json:"ucx"`
	}
	parts.plain = (*plain)(s)
	var tree any
	if err := errors.Join(json.Unmarshal(text, &parts), json.Unmarshal(text, &tree)); err != nil {
		return err
	}
	s.addPeer("perftest", parts.Perftest)
	s.addPeer("mpi", parts.MPI)
	s.addPeer("ucx", parts.UCX)
	for _, d := range declared {
		if v := find(tree, d.name); v != nil {
			m, ok := d.decode(v)
			if !ok {
				return fmt.Errorf("%s is %v", d.name, v)
			}
			s.put(d.name, m)
		}
	}
	return nil
}

func (s *Series) addPeer(place string, p *Peer) {
	if p != nil {
		p.Place = place
		s.Peers = append(s.Peers, p)
	}
}

// find returns what a name with dots stands for; nil where there is nothing.
func find(tree any, name string) any {
	for field := range strings.SplitSeq(name, ".") {
		object, _ := tree.(map[string]any)
		tree = object[field]
	}
	return tree
}

// jsonWriter writes a series a line: as it comes, or in one array at the end, which is empty where
// nothing was measured.
type jsonWriter struct {
	w     io.Writer
	array bool
	lines [][]byte
}

func (j *jsonWriter) Add(s *Series) error {
	b, err := json.Marshal(s)
	if err == nil && !j.array {
		_, err = fmt.Fprintf(j.w, "%s\n", b)
		return err
	}
	j.lines = append(j.lines, b)
	return err
}

func (j *jsonWriter) Close() error {
	text := "[]\n"
	switch {
	case !j.array:
		return nil
	case len(j.lines) > 0:
		text = fmt.Sprintf("[\n%s\n]\n", bytes.Join(j.lines, []byte(",\n")))
	}
	_, err := io.WriteString(j.w, text)
	return err
}
