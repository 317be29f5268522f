//go:build cgo && linux && (amd64 || arm64)

package sample

import "time"

// Wait is in a second file with the same line and without import "C".
func Wait(q *QP, limit time.Duration) (time.Duration, error) { return limit, nil }
