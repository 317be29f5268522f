package main

import (
	"bytes"
	"fmt"
	"os"
)

// filler is what C's programs fill their message with, but for ibv_srq_pingpong, whose is
// zero: with -c the client puts a zero at the start of every page, and the server looks at
// these alone.
const filler = 0x7b

func fill(msg []byte, with byte, check bool) {
	for i := range msg {
		msg[i] = with
	}
	if check {
		for i := 0; i < len(msg); i += os.Getpagesize() {
			msg[i] = 0
		}
	}
}

// verify compares all bytes of a message, where C's programs look at one in each page.
func verify(got, want []byte) error {
	if bytes.Equal(got, want) {
		return nil
	}
	at := 0
	for got[at] == want[at] {
		at++
	}
	return fmt.Errorf("byte %d is %#02x, not %#02x: it was damaged, or the peer runs without --chk", at, got[at], want[at])
}

// wipe makes every byte one that the pattern does not have, so that the next
// message must arrive to be there.
func wipe(msg []byte) {
	for i := range msg {
		msg[i] = 0xff
	}
}
