package rdmacm

import (
	"context"
	"net"
	"net/netip"

	"github.com/goverbs/goverbs/ibv"
)

// Config says what connections are made of. The zero value will do to begin with.
type Config struct {
	// Cap is the capacity of the queue pair. The zero value, as a whole, stands for 64 sends and 64
	// receives, each with one SGE, and 64 inline bytes; with a shared receive queue there are
	// no receives but those.
	Cap ibv.QPCap
	// SignalAll gives every send a completion. Without it those have one that ask for it, as at
	// least one in MaxSendWR has to: until it completes those before it keep their places.
	SignalAll bool
	// PD is the protection domain, of the device that leads to the peer. Without one the
	// connection has its own, and closes it with all that was made from it: memory too.
	PD *ibv.PD
	// Queues are completion queues and a shared receive queue that others use too; PD is to be
	// given with them, and all are of the same Context. Without completion queues the
	// connection has one of its own, which the queue pair cannot overflow. What
	// cq.InitAttr has beyond entries and a channel, as Hold, takes queues of the program's own.
	Queues ibv.QPQueues
	// Param is what is agreed with the peer; nil stands for DefaultConnParam.
	Param *ConnParam
	// Local is the address to connect from. Without it the route decides. It is for Dial.
	Local netip.Addr
	// Backlog is how many peers may be waiting for Accept; 0 is the kernel's limit. It is for
	// Listen.
	Backlog int
	// Control, if not nil, is given the id before it is bound to an address, to set its options:
	// its type of service, for example.
	Control func(*ID) error
}

func (c *Config) qp() ibv.QPInitAttr {
	init := ibv.QPInitAttr{Type: ibv.QPTypeRC, Cap: c.Cap, SignalAll: c.SignalAll}
	if init.Cap == (ibv.QPCap{}) {
		init.Cap = ibv.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 64}
		if c.Queues.SRQ != nil {
			init.Cap.MaxRecvWR, init.Cap.MaxRecvSGE = 0, 0
		}
	}
	return init
}

func (c *Config) param() ConnParam {
	if c.Param == nil {
		return DefaultConnParam()
	}
	return *c.Param
}

func (c *Config) control(id *ID) error {
	if c.Control == nil {
		return nil
	}
	return c.Control(id)
}

// lookup returns the addresses of a host, each with its zone, which LookupNetIP loses.
func lookup(ctx context.Context, network, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil && ip.Zone() != "" {
		return []netip.Addr{ip}, nil
	}
	return net.DefaultResolver.LookupNetIP(ctx, network, host)
}

// resolve turns "host:port" into addresses, in the resolver's order. Without a host they are
// those of any, :: and 0.0.0.0.
func resolve(ctx context.Context, address string) ([]netip.AddrPort, error) {
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, err
	}
	ips := []netip.Addr{netip.IPv6Unspecified(), netip.IPv4Unspecified()}
	if host != "" {
		if ips, err = lookup(ctx, "ip", host); err != nil {
			return nil, err
		}
	}
	var all []netip.AddrPort
	for _, ip := range ips {
		all = append(all, netip.AddrPortFrom(ip.Unmap(), uint16(port)))
	}
	return all, nil
}
