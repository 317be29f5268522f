package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/ibv"
)

// The exchange over TCP is that of ibv_rc_pingpong. The client sends its address,
// the server connects its queue pair and answers with its own, the client says
// "done", and both hang up. All of it is text of a fixed length that ends with NUL.

// addressLen is the length of an address: LID, QPN, PSN and GID in hexadecimal.
const addressLen = len("0000:000000:000000:00000000000000000000000000000000\x00")

const done = "done\x00"

func formatAddress(e ibv.Endpoint) []byte {
	return fmt.Appendf(nil, "%04x:%06x:%06x:%x\x00", e.LID, e.QPN, e.PSN, e.GID[:])
}

// parseAddress reads an address. The endpoint has no MTU: it is not exchanged.
func parseAddress(msg []byte) (ibv.Endpoint, error) {
	text, ended := strings.CutSuffix(string(msg), "\x00")
	fields := strings.Split(text, ":")
	if !ended || len(fields) != 4 {
		return ibv.Endpoint{}, fmt.Errorf("the peer sent %.60q, which is no address of ibv_rc_pingpong", msg)
	}
	var e ibv.Endpoint
	lid, err1 := hexField(fields[0], 4)
	qpn, err2 := hexField(fields[1], 6)
	psn, err3 := hexField(fields[2], 6)
	gid, err4 := hex.DecodeString(fields[3])
	if err := errors.Join(err1, err2, err3, err4); err != nil || len(gid) != len(e.GID) {
		return ibv.Endpoint{}, fmt.Errorf("the peer sent the address %.60q, whose fields are not LID:QPN:PSN:GID in hexadecimal", msg)
	}
	e.LID, e.QPN, e.PSN = uint16(lid), qpn, psn
	copy(e.GID[:], gid)
	return e, nil
}

func hexField(s string, digits int) (uint32, error) {
	n, err := strconv.ParseUint(s, 16, 4*digits)
	if err == nil && len(s) != digits {
		err = strconv.ErrSyntax
	}
	return uint32(n), err
}

// exchangeAsClient tells the server the local address and returns the server's.
func exchangeAsClient(conn net.Conn, local ibv.Endpoint) (ibv.Endpoint, error) {
	if err := send(conn, formatAddress(local), "the address"); err != nil {
		return ibv.Endpoint{}, err
	}
	remote, err := receiveAddress(conn)
	if err != nil {
		return ibv.Endpoint{}, err
	}
	return remote, send(conn, []byte(done), "that this side is done")
}

// exchangeAsServer returns the client's address. It calls connect with it before it
// answers, so that the client can send at once.
func exchangeAsServer(conn net.Conn, local ibv.Endpoint, connect func(remote ibv.Endpoint) error) (ibv.Endpoint, error) {
	remote, err := receiveAddress(conn)
	if err != nil {
		return ibv.Endpoint{}, err
	}
	if err := connect(remote); err != nil {
		return ibv.Endpoint{}, err
	}
	if err := send(conn, formatAddress(local), "the address"); err != nil {
		return ibv.Endpoint{}, err
	}
	var msg [len(done)]byte
	if err := receive(conn, msg[:]); err != nil {
		return ibv.Endpoint{}, err
	}
	if string(msg[:]) != done {
		return ibv.Endpoint{}, fmt.Errorf("the client sent %q where ibv_rc_pingpong says %q", msg, done)
	}
	return remote, nil
}

func receiveAddress(conn net.Conn) (ibv.Endpoint, error) {
	var msg [addressLen]byte
	if err := receive(conn, msg[:]); err != nil {
		return ibv.Endpoint{}, err
	}
	return parseAddress(msg[:])
}

func send(conn net.Conn, msg []byte, what string) error {
	if _, err := conn.Write(msg); err != nil {
		return fmt.Errorf("telling the peer %s: %w", what, err)
	}
	return nil
}

func receive(conn net.Conn, msg []byte) error {
	n, err := io.ReadFull(conn, msg)
	got := fmt.Sprintf("%d of %d bytes", n, len(msg))
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("the peer hung up in the exchange of addresses, after %s", got)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the peer sent %s of the exchange of addresses and no more: is it an ibv_rc_pingpong or pingpong?", got)
	}
	return fmt.Errorf("the exchange of addresses, after %s: %w", got, err)
}
