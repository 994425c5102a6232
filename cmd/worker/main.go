// Worker claims commands of a pool and runs their handlers, which a pool file
// names. Without a server it starts one of its own.
package main

import (
	"os"
	"runtime/debug"

	"github.com/tallyman-go/tallyman/cmd/internal/cli"
)

func main() {
	// A worker keeps little alive and makes much garbage: at the default of 100
	// a quarter of its CPU goes into collecting it, to save 15 MB.
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	var flags Flags
	os.Exit(cli.Main("worker", "Work on the commands of a pool, with the handlers of a pool file.", &flags, &flags.Common, os.Args[1:]))
}
