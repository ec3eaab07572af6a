package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
)

// schema is what ibbench-1.schema.json says, and that there are no other fields.
var schema = sync.OnceValues(func() (*jsonschema.Resolved, error) {
	text, err := os.ReadFile("ibbench-1.schema.json")
	if err != nil {
		return nil, err
	}
	var plain any
	if err := json.Unmarshal(text, &plain); err != nil {
		return nil, err
	}
	if text, err = json.Marshal(closed(plain)); err != nil {
		return nil, err
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, err
	}
	return s.Resolve(nil)
})

// closed takes further fields from all objects that a schema describes.
func closed(x any) any {
	switch x := x.(type) {
	case []any:
		for i := range x {
			x[i] = closed(x[i])
		}
	case map[string]any:
		for k := range x {
			x[k] = closed(x[k])
		}
		if _, open := x["additionalProperties"]; x["type"] == "object" && x["properties"] != nil && !open {
			x["additionalProperties"] = false
		}
	}
	return x
}

// conforms compares what a command has written with the schema.
func conforms(t *testing.T, what string, text []byte) {
	t.Helper()
	var all []any
	if err := json.Unmarshal(text, &all); err != nil {
		lines := strings.Join(strings.Split(strings.TrimSpace(string(text)), "\n"), ",")
		if err := json.Unmarshal([]byte("["+lines+"]"), &all); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	of, err := schema()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Errorf("%s: no series", what)
	}
	for i, s := range all {
		if err := of.Validate(s); err != nil {
			short, _ := json.Marshal(s)
			t.Errorf("%s, object %d: %v\n%.2000s", what, i+1, err, short)
			return
		}
	}
}

func TestEveryCommandWritesTheSchema(t *testing.T) {
	const brief = " --fabric shm --warmup 1ms --warmup-iters 20 --iters 200"
	dir := t.TempDir()
	for i, args := range []string{
		"lat put --sizes 8,4K --rounds 4" + brief,
		"lat am --sizes short,64 --rounds 4" + brief,
		"lat get --sizes 8,64K --rounds 2 --assert p50<1s" + brief,
		"lat get --local own" + brief,
		"lat cas -n 3" + brief,
		"lat put --ack --size 1M --rounds 4" + brief,
		"lat put --size 8 --rate 20k" + brief,
		"bw put --sizes 64,1M --bidi --rounds 2" + brief,
		"bw get --size 16M --rounds 2 --fabric shm --warmup 0 --warmup-iters 1 --iters 5",
		"rate am --lanes 1,2 --rounds 2" + brief,
		"coll allreduce,barrier --sizes 8" + brief,
		"coll bcast --loop 1 --sizes 1M --fabric shm --warmup 0 --warmup-iters 1 --iters 5",
		"cache gups --sizes 1K --rounds 2 --mapped --fabric shm",
		"mr hit --size 4K --iters 50 --fake",
		"mr churn --size 4K --iters 50 --cycles 100 --fake",
		"flow jacobi --limit 0 --quick",
		"flow ft --limits 0 --quick --class S",
		"flow incast --quick --payloads 20 -n 2",
	} {
		kind := strings.Fields(args)[0]
		t.Run(fmt.Sprint(i, kind), func(t *testing.T) {
			if kind == "mr" {
				needHooks(t)
			}
			file := filepath.Join(dir, fmt.Sprintf("%d", i))
			_, errs, code := ibbench(t, append(strings.Fields(args), "-q", "-o", file+".json", "-o", file+".ndjson")...)
			if code != exitOK {
				t.Fatalf("%s: exit code %d: %s", args, code, errs)
			}
			for _, suffix := range []string{".json", ".ndjson"} {
				text, err := os.ReadFile(file + suffix)
				if err != nil {
					t.Fatal(err)
				}
				conforms(t, args+suffix, text)
			}
		})
	}
}

func TestTheSchemaRefusesWhatItDoesNotSay(t *testing.T) {
	out, errs, code := ibbench(t, strings.Fields("lat get --fabric shm --size 64K --batch 1 --iters 50 --warmup 0 -q --format json")...)
	if code != exitOK {
		t.Fatal(errs)
	}
	of, err := schema()
	if err != nil {
		t.Fatal(err)
	}
	for what, spoil := range map[string]func(s, result map[string]any){
		"nothing":          func(map[string]any, map[string]any) {},
		"half a ns":        func(_, result map[string]any) { result["mean"] = 60529.5 },
		"half a p50":       func(_, result map[string]any) { result["p"].(map[string]any)["50"] = 0.5 },
		"half an interval": func(s, _ map[string]any) { s["intervals"].([]any)[0].(map[string]any)["p50"] = 0.5 },
		"no histogram":     func(s, _ map[string]any) { delete(s, "hist") },
		"a new field":      func(s, _ map[string]any) { s["new"] = 1 },
		"a new kind":       func(s, _ map[string]any) { s["kind"] = "x" },
		"no unit":          func(_, result map[string]any) { delete(result, "unit") },
	} {
		var all []map[string]any
		if err := json.Unmarshal([]byte(out), &all); err != nil {
			t.Fatal(err)
		}
		spoil(all[0], all[0]["result"].(map[string]any))
		if err := of.Validate(all[0]); (err == nil) != (what == "nothing") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
