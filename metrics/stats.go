package metrics

import (
	"reflect"
	"strings"
	"time"
)

// reader gives the figures of structures of counters, as the tags of their fields say: package
// counter.
type reader struct {
	prefix string   // of the names, in front of the names in tags
	labels []string // of all
	not    string   // skips fields of which the tag "at" says that
	add    func(Figure)

	help map[string]string // by name, of the first field that has it
}

// read gives the figures of a structure.
func (r reader) read(stats any) {
	r.help = make(map[string]string)
	r.fields(reflect.ValueOf(stats), "")
}

// fields gives the figures of a structure inside; subject stands before their help.
func (r reader) fields(v reflect.Value, subject string) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, help, _ := strings.Cut(f.Tag.Get("metric"), " ")
		if r.not != "" && f.Tag.Get("at") == r.not {
			continue
		}
		if f.Type.Kind() == reflect.Struct {
			in := r
			in.prefix += name
			in.fields(v.Field(i), subject+help)
		} else if name != "" {
			r.figure(v.Field(i), name, subject+help)
		}
	}
}

// figure gives one. A name that ends in _total is of a counter.
func (r reader) figure(v reflect.Value, name, help string) {
	f := Figure{Kind: Gauge, Labels: r.labels, Value: valueOf(v)}
	name, labels, _ := strings.Cut(strings.TrimSuffix(name, "}"), "{")
	f.Name = r.prefix + name
	if strings.HasSuffix(name, "_total") {
		f.Kind = Counter
	}
	if label, value, ok := strings.Cut(labels, "="); ok {
		f.Labels = append(f.Labels[:len(f.Labels):len(f.Labels)], label, value)
	}
	if _, ok := r.help[f.Name]; !ok {
		r.help[f.Name] = help
	}
	f.Help = r.help[f.Name]
	r.add(f)
}

func valueOf(v reflect.Value) float64 {
	switch {
	case v.Type() == reflect.TypeFor[time.Duration]():
		return time.Duration(v.Int()).Seconds()
	case v.CanInt():
		return float64(v.Int())
	}
	return float64(v.Uint())
}
