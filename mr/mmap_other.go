//go:build !linux

package mr

import "github.com/goverbs/goverbs/ibv"

const mapHugeTLB = 0

func mapMemory(int, int) ([]byte, error) { return nil, ibv.ErrUnsupportedBuild }

func unmapMemory([]byte) error { return ibv.ErrUnsupportedBuild }

func hugePageSize() (int, error) { return 0, ibv.ErrUnsupportedBuild }

func memlock() string { return "unknown" }
