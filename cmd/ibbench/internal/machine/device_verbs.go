//go:build linux && cgo

package machine

import (
	"errors"
	"fmt"
	"strings"

	"github.com/ibconduit/conduit/cmd/ibbench/internal/report"
	"github.com/ibconduit/conduit/verbs"
)

// FindDevice describes the device to measure on: the one named, else the first
// usable one, hardware before software. why says how it was chosen.
func FindDevice(name, gid string) (d *report.Device, why string, err error) {
	if name != "" {
		d, err = describe(name, 0, gid)
		return d, "asked for", err
	}
	infos, err := verbs.Devices()
	if err != nil {
		return nil, "", err
	}
	if len(infos) == 0 {
		return nil, "", errors.New("this host has no RDMA device")
	}
	var soft *report.Device
	var errs []error
	for _, i := range infos {
		d, err := describe(i.Name, 0, gid)
		switch {
		case err != nil:
			errs = append(errs, err)
		case !d.Software:
			return d, "the first usable device", nil
		case soft == nil:
			soft = d
		}
	}
	if soft != nil {
		return soft, "the best usable device; it is software", nil
	}
	return nil, "", errors.Join(errs...)
}

// DescribePort describes a device and port in use.
func DescribePort(name string, port int, gid string) (*report.Device, error) {
	return describe(name, port, gid)
}

// describe opens the device for a moment. Port 0 is the first usable one.
func describe(name string, port int, gid string) (_ *report.Device, err error) {
	x, err := verbs.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	first, last := port, port
	if port == 0 {
		first, last = 1, x.Attr().Ports
	}
	var errs []error
	for p := first; p <= last; p++ {
		d, err := describePort(x, p, parseGID(gid))
		if err == nil {
			return d, nil
		}
		errs = append(errs, fmt.Errorf("device %s port %d: %w", name, p, err))
	}
	return nil, errors.Join(errs...)
}

func describePort(x *verbs.Context, port, gid int) (*report.Device, error) {
	attr, err := x.Port(port)
	if err != nil {
		return nil, err
	}
	gids, err := x.GIDs(port)
	if err != nil {
		return nil, err
	}
	choice, err := verbs.ChooseGID(attr, gids, max(gid, verbs.AutoGID))
	if err != nil {
		return nil, err
	}
	return &report.Device{
		Name: x.Name(), Port: port, Software: Software(x.Name()), Firmware: x.Attr().FirmwareVersion,
		Link: attr.LinkLayer.String(), MTU: attr.ActiveMTU.Bytes(),
		GIDIndex: choice.Index, GID: fmt.Sprint(choice.GID), GIDType: strings.TrimSpace(choice.Type.String()),
		Netdev: choice.Netdev,
		NUMA:   numaNode(x.Name()),
	}, nil
}
