//go:build linux

package main

import (
	"bytes"
	"io"
	"os"
	"sync"
)

// linesLock keeps lines of several hosts apart, which may go to the same file.
var linesLock sync.Mutex

// lines writes lines when they are whole, each after a prefix.
type lines struct {
	prefix string
	to     *os.File
	rest   []byte // of a line without an end
}

func (l *lines) Write(b []byte) (int, error) {
	linesLock.Lock()
	defer linesLock.Unlock()
	l.rest = append(l.rest, b...)
	var whole []byte
	for {
		n := bytes.IndexByte(l.rest, '\n') + 1
		if n == 0 {
			break
		}
		whole = append(append(whole, l.prefix...), l.rest[:n]...)
		l.rest = l.rest[n:]
	}
	_, err := l.to.Write(whole)
	return len(b), err
}

// finish writes what has no end of line, as a line.
func (l *lines) finish() {
	linesLock.Lock()
	rest := l.rest
	linesLock.Unlock()
	if len(rest) > 0 {
		_, _ = io.WriteString(l, "\n")
	}
}
