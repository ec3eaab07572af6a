package image

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
)

// hasPVHNote says whether qemu can enter the kernel directly: note XEN_ELFNOTE_PHYS32_ENTRY (18) of
// owner Xen (include/xen/interface/elfnote.h, hw/i386/x86.c).
func hasPVHNote(image []byte) bool {
	f, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return false
	}
	for _, p := range f.Progs {
		if p.Type != elf.PT_NOTE {
			continue
		}
		b, err := io.ReadAll(p.Open())
		if err != nil {
			return false
		}
		for len(b) >= 12 {
			name, desc := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
			kind := binary.LittleEndian.Uint32(b[8:])
			size := 12 + align4(uint64(name)) + align4(uint64(desc))
			if size > uint64(len(b)) {
				break
			}
			if kind == 18 && strings.HasPrefix(string(b[12:]), "Xen\x00") {
				return true
			}
			b = b[size:]
		}
	}
	return false
}

func align4(n uint64) uint64 { return (n + 3) &^ 3 }

// moduleNeeds returns the modules that must be loaded before this one, from its .modinfo section:
// hard dependencies and soft ones that come first.
func moduleNeeds(module []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return nil, err
	}
	s := f.Section(".modinfo")
	if s == nil {
		return nil, fmt.Errorf("no .modinfo section")
	}
	info, err := s.Data()
	if err != nil {
		return nil, err
	}
	var needs []string
	for _, kv := range strings.Split(string(info), "\x00") {
		key, value, _ := strings.Cut(kv, "=")
		switch key {
		case "depends":
			needs = append(needs, strings.FieldsFunc(value, func(r rune) bool { return r == ',' })...)
		case "softdep":
			needs = append(needs, softPre(value)...)
		}
	}
	return needs, nil
}

// softPre parses "pre: a b post: c".
func softPre(s string) (names []string) {
	pre := false
	for _, w := range strings.Fields(s) {
		switch w {
		case "pre:":
			pre = true
		case "post:":
			pre = false
		default:
			if pre {
				names = append(names, w)
			}
		}
	}
	return names
}
