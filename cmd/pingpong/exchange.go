package main

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/ibv"
)

// The exchange over TCP is that of C's programs. The client sends its address, the
// server connects its queue pair and answers with its own, the client says "done", and
// both hang up. All of it is text of a fixed length that ends with NUL. Each side of
// ibv_srq_pingpong sends 256 addresses, of which those that it has no queue pair for are
// zero.

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

// exchangeAsClient tells the server the local addresses and returns the server's, of
// which there are as many.
func exchangeAsClient(conn net.Conn, local []ibv.Endpoint) ([]ibv.Endpoint, error) {
	if err := sendAddresses(conn, local); err != nil {
		return nil, err
	}
	remote, err := receiveAddresses(conn, len(local))
	if err != nil {
		return nil, err
	}
	return remote, send(conn, []byte(done), "that this side is done")
}

// exchangeAsServer returns the client's addresses. It calls connect with them before it
// answers, so that the client can send at once.
func exchangeAsServer(conn net.Conn, local []ibv.Endpoint, connect func(remote []ibv.Endpoint) error) ([]ibv.Endpoint, error) {
	remote, err := receiveAddresses(conn, len(local))
	if err != nil {
		return nil, err
	}
	if err := connect(remote); err != nil {
		return nil, err
	}
	if err := sendAddresses(conn, local); err != nil {
		return nil, err
	}
	var msg [len(done)]byte
	if err := receive(conn, msg[:]); err != nil {
		return nil, err
	}
	switch {
	case string(msg[:]) == done:
		return remote, nil
	case msg[4] == ':': // behind a LID
		return nil, errors.New("the client sends more addresses than one: is it of type srq, and this server not?")
	}
	return nil, fmt.Errorf("the client sent %q where ibv_rc_pingpong says %q", msg, done)
}

func sendAddresses(conn net.Conn, all []ibv.Endpoint) error {
	var msg []byte
	for _, e := range all {
		msg = append(msg, formatAddress(e)...)
	}
	return send(conn, msg, "the address")
}

func receiveAddresses(conn net.Conn, n int) (all []ibv.Endpoint, err error) {
	for range n {
		var msg [addressLen]byte
		err := receive(conn, msg[:])
		if bytes.HasPrefix(msg[:], []byte(greeting)) { // which may be all
			return nil, refuseOwn(conn)
		}
		if err != nil {
			return nil, err
		}
		e, err := parseAddress(msg[:])
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, nil
}

func send(conn net.Conn, msg []byte, what string) error {
	if _, err := conn.Write(msg); err != nil {
		return fmt.Errorf("telling the peer %s: %w", what, err)
	}
	return nil
}

func receive(conn net.Conn, msg []byte) error {
	n, err := io.ReadFull(conn, msg)
	if err == nil {
		return nil
	}
	return exchangeFailed(err, n, len(msg))
}

// exchangeFailed explains why no more came of a message.
func exchangeFailed(err error, n, of int) error {
	got := fmt.Sprintf("%d of %d bytes", n, of)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return fmt.Errorf("the peer hung up in the exchange of addresses, after %s: look at what it says, and whether it is of the same type", got)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the peer sent %s of the exchange of addresses and no more: is it a pingpong of the same type?", got)
	}
	return fmt.Errorf("the exchange of addresses, after %s: %w", got, err)
}
