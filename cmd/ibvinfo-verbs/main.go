// Ibvinfo-verbs is the part of ibvinfo that needs libibverbs. Ibvinfo runs it for --verbose
// and doctor, and expects it in its own folder.
package main

import (
	"os"

	"github.com/goverbs/goverbs/cmd/internal/devinfo"
)

func main() { os.Exit(devinfo.Run(os.Args[1:], os.Stdout, os.Stderr)) }
