package memgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/ibconduit/conduit/internal/sysinfo"
)

// Group is a memory group: a directory of the controller's, and where that is of version 1 one of
// version 2, which accounts for stalls.
type Group struct {
	dir    string
	v2     bool
	stalls string // directory of version 2 where dir is of version 1; empty: none
}

// Remedy is what to do where groups cannot be made.
const Remedy = "run as root where a memory controller is writable, or in a virtual machine: hack/softroce/vm " +
	"--swap 1G run -- ibbench flow ...; or without groups: --limit 0"

// Make makes a group of so many bytes below this process's. Version 2 needs one that has the
// controller for its children: as root of a machine of its own.
func Make(name string, limit int64) (*Group, error) {
	var g *Group
	var stalls string
	var tried []error
	for _, own := range sysinfo.Host().Cgroups("memory") {
		if g != nil && g.v2 {
			break
		}
		dir := filepath.Join(own.Dir, name)
		switch {
		case own.V2 && has(filepath.Join(own.Dir, "cgroup.controllers"), "memory"):
			// Fails with EBUSY in a group that has processes, unless it is the root.
			if err := delegate(own.Dir); err != nil {
				tried = append(tried, err)
				continue
			}
		case own.V2:
			if stalls == "" && os.Mkdir(dir, 0o755) == nil {
				stalls = dir
			}
			continue
		}
		if g != nil {
			continue
		}
		if err := os.Mkdir(dir, 0o755); err != nil {
			tried = append(tried, err)
			continue
		}
		file := "memory.limit_in_bytes"
		if own.V2 {
			file = "memory.max"
		}
		if err := os.WriteFile(filepath.Join(dir, file), []byte(strconv.FormatInt(limit, 10)), 0); err != nil {
			tried = append(tried, err, os.Remove(dir))
			continue
		}
		g = &Group{dir: dir, v2: own.V2}
	}
	if g == nil {
		if stalls != "" {
			tried = append(tried, os.Remove(stalls))
		}
		if len(tried) == 0 {
			tried = append(tried, errors.New("this machine has no memory controller"))
		}
		return nil, fmt.Errorf("a memory group of %d bytes: %w; %s", limit, errors.Join(tried...), Remedy)
	}
	g.stalls = stalls
	return g, nil
}

func has(file, word string) bool {
	text, _ := os.ReadFile(file)
	for w := range strings.FieldsSeq(string(text)) {
		if w == word {
			return true
		}
	}
	return false
}

// delegate gives a group's children the controller.
func delegate(dir string) error {
	file := filepath.Join(dir, "cgroup.subtree_control")
	if has(file, "memory") {
		return nil
	}
	return os.WriteFile(file, []byte("+memory"), 0)
}

// Place is what Enter takes, in another process.
func (g *Group) Place() string { return g.dir + ":" + g.stalls }

// Enter moves this process into a group. What memory it has already stays charged where it is.
func Enter(place string) error {
	for dir := range strings.SplitSeq(place, ":") {
		if dir == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
			return fmt.Errorf("enter the memory group %s: %w", dir, err)
		}
	}
	return nil
}

// Remove removes the group; its processes must have ended.
func (g *Group) Remove() error {
	err := os.Remove(g.dir)
	if g.stalls != "" {
		err = errors.Join(err, os.Remove(g.stalls))
	}
	return err
}
