//go:build !linux

package doctor

import "errors"

// KernelPFC is the Env's PFC on Linux.
func KernelPFC(string) (uint8, error) { return 0, errors.ErrUnsupported }
