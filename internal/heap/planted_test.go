//go:build !race && !debug && !biglock

package heap

import (
	"testing"
	"time"

	"github.com/ibconduit/conduit/internal/faulttest"
)

// Each mend of a defect of the original is taken back, and a test finds that.
func TestSuiteFindsPlantedFaults(t *testing.T) {
	edit := faulttest.In("internal/heap")
	faulttest.Suite{
		Package: "internal/heap", Args: []string{"-operations=50000"}, Timeout: 2 * time.Minute, Known: true,
		Run: "^Test(RandomWorlds|TheWhole|TheLast|Growth|AGlobal|ACount|WrongFrees|Freed|FreeWaits|TheError|AllFreeW|ADead|AnAband|AnOver|MemoryIs|WhatCannot)",
	}.Check(t,
		faulttest.Fault{Name: "an overtaken reply counts", Found: "I1: |figures that cannot be|a limit of the epoch before",
			Edits: edit("heap.go", "case epoch < h.epoch:", "case false:")},
		faulttest.Fault{Name: "growth is granted during a reclaim", Found: "I1: |I2: |overlap",
			Edits: append(edit("root.go", "	if b.busy {\n		return 0, b.epoch\n	}\n", ""),
				edit("root.go", "if r.bound.busy { // the limit may be lower soon", "if false {")...)},
		faulttest.Fault{Name: "the last reply counts, not the largest", Found: "I1: |within the limit|grow by|limits of 4 and 2",
			Edits: edit("heap.go", "h.limit = max(h.limit, limit)\n	}\n}", "h.limit = limit\n	}\n}")},
		faulttest.Fault{Name: "the limit stays when the heap is trimmed", Found: "I1: |overlap|figures that|in use: <nil>|a small block",
			Edits: edit("heap.go", "h.limit, h.last = h.length, 0", "h.last = 0")},
		faulttest.Fault{Name: "a reclaim does not wait for all", Found: "I1: |a reclaim without all ranks",
			Edits: edit("root.go", "		if err != nil {\n			return 0, 0, err\n", "		if false {\n			return 0, 0, err\n")},
		faulttest.Fault{Name: "the global heap never shrinks", Found: "local again: ",
			Edits: edit("root.go", "			r.trimGlobal()\n			limit, epoch", "			limit, epoch")},
		faulttest.Fault{Name: "local heaps never shrink", Found: "global again: |no reclaim where",
			Edits: edit("root.go", "if !ok && r.canFit(n, align) && r.reclaim(ctx) == nil {", "if false {")},
		faulttest.Fault{Name: "growth asks for more than is left", Found: "page [0-9]+ of 64|the whole heap",
			Edits: edit("boundary.go", "if least > room {", "if max(want, least) > room {")},
		faulttest.Fault{Name: "only the top bits are looked at", Found: "blocks of [0-9]+ bytes",
			Edits: edit("heap.go", "hi != 0 || total > 1<<62", "hi>>63 != 0 || total > 1<<62")},
		faulttest.Fault{Name: "the range includes its end", Found: "the end of the local heap|free of 0:",
			Edits: edit("heap.go", "inside := off < h.length", "inside := off <= h.length")},
		faulttest.Fault{Name: "wrong frees are ignored", Found: "twice",
			Edits: edit("heap.go", "		err = whyNotFree(p, err)\n", "		err = nil\n")},
		faulttest.Fault{Name: "a block that nobody waits for is lost", Found: "163840 bytes",
			Edits: edit("heap.go", "if p != nil {\n		h.env", "if false {\n		h.env")},
		faulttest.Fault{Name: "AllFree does not wait", Found: "freed before the last|in use: <nil>",
			Edits: edit("all.go", "	if err := compare(ctx, h.team, op, uint64(p.node), p.off); err != nil {\n		if errors.As", "	if err := error(nil); err != nil {\n		if errors.As")},
		faulttest.Fault{Name: "a page less", Found: "the whole heap|page [0-9]+ of 64",
			Edits: edit("boundary.go", "room := b.size - b.global\n", "room := b.size - b.global\n	room -= min(room, 4096)\n")},
		faulttest.Fault{Name: "the heaps meet", Found: "I2: |in use: <nil>|in the way of: <nil>",
			Edits: edit("boundary.go", "if n > b.size-b.local-b.global {", "if n > b.size-b.global {")},
		faulttest.Fault{Name: "Free does not wait for the owner", Found: "when Free has returned|figures that|in use: <nil>",
			Edits: edit("heap.go", "	r, err := h.free.Call(ctx, h.via, p.Rank(), p.off)\n", "	r, err := am.Reply{}, h.free.Post(ctx, h.via, p.Rank(), p.off)\n")},
		faulttest.Fault{Name: "a global block is freed at any rank", Found: "local heap: [^ ]+ <nil>|a global block at",
			Edits: edit("heap.go", "err = &FreeError{Ptr: p, Reason: WrongHeap}", "return nil")},
		faulttest.Fault{Name: "a handler does what may wait", Found: "a small block after the failure: ",
			Edits: edit("root.go", "if err := r.service.Post(func(ctx context.Context) { f(ctx, d.Reply) }); err != nil {", "if f(context.Background(), d.Reply); false {")},
		faulttest.Fault{Name: "nobody is told who reserves", Found: "rank [0-9]: conduit: all alloc",
			Edits: append(edit("boundary.go", "b.local, b.by = to, rank", "b.local = to"), edit("root.go", "b.local, b.by = local, by", "b.local, _ = local, by")...)},
		faulttest.Fault{Name: "only rank 0 gets the error", Found: "of an AllAlloc, rank 0|rank [0-9]: <nil>|rank [0-9]: [0-9]+ blocks",
			Edits: edit("all.go", "		o.setError(err)\n", "		if o.setError(err); err != nil {\n			o.Kind = errorNone\n		}\n")},
		faulttest.Fault{Name: "a failed growth changes the boundary", Found: "I1: |I2: |I3: |the whole heap|one block: <nil>",
			Edits: edit("boundary.go", "	if n > b.size-b.local-b.global {\n		return false\n	}\n	b.global += n\n", "	b.global += n\n	if b.global > b.size-b.local {\n		return false\n	}\n")},
		faulttest.Fault{Name: "without rank 0 a rank asks for ever", Found: "rank 0 is dead: ",
			Edits: edit("heap.go", "		return fmt.Errorf(\"conduit: alloc of %d bytes: rank 0, which", "		h.env.Host().Sleep(time.Second)\n		return nil\n		return fmt.Errorf(\"conduit: alloc of %d bytes: rank 0, which")},
		faulttest.Fault{Name: "a reclaim that cannot help", Found: "[0-9] reclaims",
			Edits: edit("root.go", "if !ok && r.canFit(n, align) && r.reclaim(ctx) == nil {", "if !ok && r.reclaim(ctx) == nil {")},
	)
}
