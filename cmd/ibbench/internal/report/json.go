package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/pairs"
)

// places of peers in the JSON, the one that a point is compared with first.
var places = []string{"perftest", "mpi", "ucx"}

// MarshalJSON writes the schema ibbench/1: what all points have, then metrics, peers and the raw
// result, each at its place.
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
	switch raw := s.Raw.(type) {
	case *pairs.Matrix:
		tree["pairs"] = raw
	case *Sizes:
		tree["cache_sizes"] = raw
	case json.RawMessage:
		place(tree, "flow.report", raw)
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
	if err := json.Unmarshal(text, (*plain)(s)); err != nil {
		return err
	}
	var tree node
	if err := json.Unmarshal(text, &tree.text); err != nil {
		return err
	}
	for i := range declared {
		d := &declared[i]
		found, err := tree.find(d.name)
		if err != nil {
			return err
		}
		if found == nil {
			continue
		}
		m, err := d.decode(found)
		if err != nil {
			return err
		}
		s.put(d.name, m)
	}
	return s.readObjects(&tree)
}

// readObjects reads peers and the raw result.
func (s *Series) readObjects(tree *node) error {
	for _, name := range places {
		p := &Peer{Place: name}
		if ok, err := tree.decode(name, p); err != nil {
			return err
		} else if ok {
			s.Peers = append(s.Peers, p)
		}
	}
	var report json.RawMessage
	for name, raw := range map[string]any{"pairs": new(pairs.Matrix), "cache_sizes": new(Sizes), "flow.report": &report} {
		if ok, err := tree.decode(name, raw); err != nil {
			return err
		} else if ok {
			s.Raw = raw
		}
	}
	if report != nil {
		s.Raw = report
	}
	return nil
}

// node is an object of JSON, which is taken apart when something of it is looked for.
type node struct {
	text   json.RawMessage
	fields map[string]*node
}

// find returns what a name with dots stands for; nil where there is nothing.
func (n *node) find(name string) (json.RawMessage, error) {
	if n.fields == nil {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(n.text, &fields); err != nil {
			return nil, err
		}
		n.fields = make(map[string]*node, len(fields))
		for k, text := range fields {
			n.fields[k] = &node{text: text}
		}
	}
	first, rest, nested := strings.Cut(name, ".")
	switch x := n.fields[first]; {
	case x == nil || string(x.text) == "null":
		return nil, nil
	case nested:
		return x.find(rest)
	default:
		return x.text, nil
	}
}

// decode reads what a name with dots stands for, if there is something.
func (n *node) decode(name string, into any) (ok bool, err error) {
	text, err := n.find(name)
	if err != nil || text == nil {
		return false, err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return false, fmt.Errorf("%s: %w", name, err)
	}
	return true, nil
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
