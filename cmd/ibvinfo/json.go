package main

import (
	"time"

	"github.com/goverbs/goverbs/cmd/ibvinfo/internal/doctor"
	"github.com/goverbs/goverbs/cmd/internal/attributes"
	"github.com/goverbs/goverbs/internal/sysfs"
)

// document is what every command prints with --json. schema.json says what the fields mean.
type document struct {
	Command  string         `json:"command"`
	Devices  []device       `json:"devices,omitempty"`
	Choices  []choice       `json:"choices,omitempty"`
	Counters []counter      `json:"counters,omitempty"`
	Samples  []sample       `json:"samples,omitempty"`
	Checks   []doctor.Check `json:"checks,omitempty"`
	Notes    []string       `json:"notes,omitempty"`
	Errors   []string       `json:"errors,omitempty"`

	streamed bool // the samples were written as they came
}

type device struct {
	Name         string             `json:"name"`
	Kind         string             `json:"kind,omitempty"`
	NodeType     string             `json:"node_type,omitempty"`
	BusID        string             `json:"bus_id,omitempty"`
	Driver       string             `json:"driver,omitempty"`
	Firmware     string             `json:"firmware,omitempty"`
	HCAType      string             `json:"hca_type,omitempty"`
	BoardID      string             `json:"board_id,omitempty"`
	NodeGUID     string             `json:"node_guid,omitempty"`
	SysImageGUID string             `json:"sys_image_guid,omitempty"`
	NUMANode     *int               `json:"numa_node,omitempty"`
	Usable       *bool              `json:"usable,omitempty"`
	Unusable     *unusable          `json:"unusable,omitempty"`
	Ports        []port             `json:"ports,omitempty"`
	Problems     []string           `json:"problems,omitempty"`
	Verbs        *attributes.Device `json:"verbs,omitempty"`
}

type unusable struct {
	Error  string `json:"error"`
	Advice string `json:"advice"`
}

type port struct {
	Port      int      `json:"port"`
	State     string   `json:"state,omitempty"`
	PhysState string   `json:"physical_state,omitempty"`
	LinkLayer string   `json:"link_layer,omitempty"`
	Transport string   `json:"transport,omitempty"`
	Rate      string   `json:"rate,omitempty"`
	Netdev    string   `json:"netdev,omitempty"`
	LID       uint32   `json:"lid"`
	SMLID     uint32   `json:"sm_lid"`
	GIDs      []gid    `json:"gids"`
	Problems  []string `json:"problems,omitempty"`
}

type gid struct {
	Index  int    `json:"index"`
	GID    string `json:"gid"`
	Type   string `json:"type,omitempty"`
	IP     string `json:"ip,omitempty"`
	Netdev string `json:"netdev,omitempty"`
}

// choice is the GID that one device would use for an address, and why.
type choice struct {
	Device string    `json:"device"`
	For    string    `json:"for"`
	Chosen *verdict  `json:"chosen,omitempty"` // none with an Error
	Others []verdict `json:"others,omitempty"`
	Error  string    `json:"error,omitempty"`
}

// verdict says why a GID was chosen, or why not.
type verdict struct {
	Port  uint8  `json:"port"`
	Index uint32 `json:"index"`
	GID   string `json:"gid"`
	Why   string `json:"why"`
}

type counter struct {
	Device  string `json:"device"`
	Port    int    `json:"port,omitempty"`
	Name    string `json:"name"`
	Value   uint64 `json:"value"`
	Group   string `json:"group"`
	Meaning string `json:"meaning,omitempty"`
}

// sample is what has changed in one interval of --watch.
type sample struct {
	Time    time.Time `json:"time"`
	Seconds float64   `json:"seconds"`
	Changes []change  `json:"changes"`
}

type change struct {
	Device string  `json:"device"`
	Port   int     `json:"port,omitempty"`
	Name   string  `json:"name"`
	Group  string  `json:"group"`
	Delta  uint64  `json:"delta"`
	Rate   float64 `json:"per_second"`
	Reset  bool    `json:"reset,omitempty"` // it began anew; Delta is its value since
}

func describeAll(devices []sysfs.Device) (all []device) {
	for _, d := range devices {
		all = append(all, describe(d))
	}
	return all
}

func describe(d sysfs.Device) device {
	all := device{
		Name: d.Name, Kind: kind(d), NodeType: d.NodeType.Name, BusID: d.BusID, Driver: d.Driver, Firmware: d.FirmwareVersion,
		HCAType: d.HCAType, BoardID: d.BoardID, NodeGUID: d.NodeGUID, SysImageGUID: d.SysImageGUID,
		Usable: new(d.Unusable == nil), Problems: texts(d.Problems),
	}
	if d.NUMANode >= 0 {
		all.NUMANode = &d.NUMANode
	}
	if d.Unusable != nil {
		all.Unusable = &unusable{d.Unusable.Err.Error(), d.Unusable.Advice}
	}
	for _, p := range d.Ports {
		described := port{
			Port: p.Number, State: p.State.Name, PhysState: p.PhysState.Name, LinkLayer: p.LinkLayer, Transport: string(p.Transport),
			Rate: p.Rate, Netdev: p.Netdev, LID: p.LID, SMLID: p.SMLID, GIDs: []gid{}, Problems: texts(p.Problems),
		}
		for _, g := range p.GIDs {
			described.GIDs = append(described.GIDs, gid{g.Index, g.String(), string(g.Type), ipText(g), g.Netdev})
		}
		all.Ports = append(all.Ports, described)
	}
	return all
}

func texts(errs []error) (list []string) {
	for _, err := range errs {
		list = append(list, err.Error())
	}
	return list
}
