// Worker claims commands of a pool and runs their handlers, which a pool file
// names. Without a server it starts one of its own.
package main

import (
	"os"

	"github.com/tallyman-go/tallyman/cmd/internal/cli"
)

func main() {
	var flags Flags
	os.Exit(cli.Main("worker", "Work on the commands of a pool, with the handlers of a pool file.", &flags, &flags.Common, os.Args[1:]))
}
