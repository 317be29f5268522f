// Package rdmacm binds librdmacm, the RDMA connection manager: connections by IP address
// and port instead of parameters that the two programs exchange by themselves.
//
// Most programs need [Dial], [Listen] and [Conn]: RC connections, in Go's way.
//
//	l, err := rdmacm.Listen(":7471", rdmacm.Config{})
//	conn, err := l.Accept(ctx, func(c *rdmacm.Conn) error {
//		// memory in c.PD(), and receives for c.QP(), before the peer can send
//	})
//
//	conn, err := rdmacm.Dial(ctx, "192.0.2.1:7471", rdmacm.Config{}, setup)
//	_, err = conn.QP().PostSend(sends)
//	n, err := conn.CQ().Wait(ctx, wcs)
//	err = conn.Close() // and all that Config has not given it
//
// Below is the one-to-one layer, for datagrams, multicast, queue pairs of the program's own, and
// all else. An [EventChannel] is where the kernel tells what becomes of ids; an [ID] is one
// end of a connection or a listener, as a socket is to TCP; an [Event] says what has come. What
// C programs do with rdma_create_id and its like they do with these:
//
//	c, err := rdmacm.CreateEventChannel()
//	id, err := c.CreateID(rdmacm.PortSpaceTCP)
//	err = id.ResolveAddr(netip.AddrPort{}, peer, 2*time.Second)
//	e, err := id.GetEvent(ctx) // ADDR_RESOLVED, or e.Err()
//	err = id.ResolveRoute(2 * time.Second)
//	e, err = id.GetEvent(ctx) // ROUTE_RESOLVED
//	device, err := id.Context()
//	// PD, completion queue and memory of device
//	qp, err := id.CreateQP(pd, init, ibv.QPQueues{Send: q, Recv: q})
//	// receives, so that nothing the peer sends finds none
//	err = id.Connect(rdmacm.DefaultConnParam())
//	e, err = id.GetEvent(ctx) // ESTABLISHED
//
// # Queue pairs
//
// An id's queue pair, completion queues and shared receive queue are those of packages ibv
// and cq, with all that these promise: [ID.CreateQP] makes the first with ibv, and the library
// moves it as the connection goes. A program that makes and moves its queue pair itself has
// [ID.InitQPAttr], ConnParam.QPNum and [ID.Establish]. So there is no rdma_create_srq and
// rdma_destroy_srq (ibv.PD.CreateSRQ), and no rdma_create_qp_ex. Of rdma_verbs.h there is
// nothing: rdma_reg_msgs and the like are mr.AllocRegion, rdma_post_send and the like are
// ibv.QP.PostSend with ibv.Send and ibv.Recv, whose completions are tracked, and
// rdma_get_send_comp and the like are cq.CQ.Wait, which waits without a thread.
// rdma_get_request is GetEvent of a listener. Addresses are IP addresses: those of AF_IB are not
// bound, nor is what is newer than rdma-core 44 (rdma_resolve_addrinfo, rdma_query_addrinfo,
// rdma_write_cm_event).
//
// # Events
//
// Which events an id can find depends on what it waits for. Any of them may come at any time,
// UNREACHABLE, DISCONNECTED, ADDR_CHANGE and DEVICE_REMOVAL before all: expect each.
//
//	after               success           failure
//	CreateID, BindAddr  -                 -
//	ResolveAddr         ADDR_RESOLVED     ADDR_ERROR
//	ResolveRoute        ROUTE_RESOLVED    ROUTE_ERROR
//	Connect             ESTABLISHED       REJECTED, UNREACHABLE, CONNECT_ERROR
//	the same, own QP    CONNECT_RESPONSE  likewise; after Establish nothing
//	Listen              CONNECT_REQUEST   -
//	CONNECT_REQUEST     nothing before Accept, not even that the peer is gone
//	Accept              ESTABLISHED       UNREACHABLE, REJECTED, CONNECT_ERROR
//	Accept, datagrams   nothing           -
//	ESTABLISHED         -                 DISCONNECTED
//	Disconnect          DISCONNECTED, when the peer has answered; then TIMEWAIT_EXIT
//	JoinMulticast       MULTICAST_JOIN    MULTICAST_ERROR
//	being on a device   ADDR_CHANGE       DEVICE_REMOVAL
//
// "Own QP" is an id without a queue pair of CreateQP. What counts in each event:
//
//	CONNECT_REQUEST                 ID is new, Listener; Conn or UD, PrivateData, ECE
//	CONNECT_RESPONSE, ESTABLISHED   Conn or UD, PrivateData; ECE of the side that connects
//	REJECTED                        Status is a RejectReason; PrivateData
//	ADDR_ERROR, ROUTE_ERROR,        Status is a negative errno
//	UNREACHABLE, CONNECT_ERROR
//	MULTICAST_JOIN, _ERROR          Group, UD; Status
//
// DISCONNECTED says that the peer has called Disconnect or closed, or that its program has
// ended: call Disconnect, or Close. The kernel of a program that was killed takes its memory and
// queue pairs down meanwhile, in any order, so that what is in flight may fail before, with
// cq.StatusRemOpErr or cq.StatusRemAccessErr. Of a host that crashed or was cut off the
// connection manager learns nothing after ESTABLISHED: a side with sends outstanding finds the
// failed completion of one (cq.StatusRetryExcErr) after the retries; a side that only receives
// waits for ever, but for a deadline of its own, or messages that it expects. An ESTABLISHED
// may come after the first message of the peer.
//
// # Goroutines
//
// All methods of all types may be called from several goroutines. A Conn has one goroutine of
// the library's own, which reads the events of its channel: nobody else should. Nothing else
// here has any. Calls that change an id take their turns. Each event goes to one goroutine: one
// that waits in GetEvent of its id, else one that waits in GetEvent of the channel, else whoever
// asks next. An event's work on the id's queue pair is done in that GetEvent, so that a connection
// makes no progress while nobody asks for its events. Who reads an id's events one by one reads none of its
// channel beside, which could take one before the id's wait begins. Waiting holds no thread, ends with its context, and with
// Close of the id or channel; a wait that ends loses no event. Closing an id waits for calls on
// it, and for no event.
//
// A connection that has a channel of its own ([ID.Migrate]) keeps its events out of the way of
// others, and of their goroutines.
//
// # Closing
//
// [ID.Close] ends whatever state the id is in, and is all that is needed after any error. What
// the program has made for it, memory, completion queues and PD, it closes after it. An id that
// was dropped without Close is closed when its queue pair is, and reported to the logger of
// ibv.SetLogger: hold on to an id as long as its connection is in use.
//
// When a device is removed each id on it finds DEVICE_REMOVAL. Its driver may wait then until
// the device is closed: close the ids and what was made from the device. librdmacm, which holds
// each device open to the end of the process, is made to let go of it with the last id that was
// bound to it and has been told, that is, whose event was there to be read when it was closed.
// The librdmacm of rdma-core 44 has a fault on hosts with several devices: when one comes or
// goes it may take others for removed, and then wait for itself in its next call. It depends on
// where C's memory lies; MALLOC_ARENA_MAX=1 in the environment avoids it.
package rdmacm
