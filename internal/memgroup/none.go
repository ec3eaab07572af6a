//go:build !linux

package memgroup

import "errors"

var errNone = errors.New("memory groups and swap files are for Linux")

type Group struct{}

func Make(string, int64) (*Group, error) { return nil, errNone }
func (*Group) Place() string             { return "" }
func (*Group) Remove() error             { return nil }
func Enter(string) error                 { return errNone }

type Swap struct{}

func FreeSwap() int64                       { return 0 }
func MakeSwap(string, int64) (*Swap, error) { return nil, errNone }
func (*Swap) Remove() error                 { return nil }
