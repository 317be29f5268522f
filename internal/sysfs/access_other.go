//go:build !unix

package sysfs

import "errors"

func access(string) error { return errors.ErrUnsupported }
