// Producer submits commands to a pool: one, all of a file, or those of an outbox.
package main

import (
	"os"

	"github.com/alecthomas/kong"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
)

// Flags of the command line.
type Flags struct {
	cli.Common `embed:""`

	Submit  Submit           `cmd:"" help:"Submit one command."`
	Import  Import           `cmd:"" help:"Submit a command for each line or row of a file."`
	Relay   Relay            `cmd:"" help:"Carry the commands of an outbox in a database to the pool, until stopped."`
	Failed  Failed           `cmd:"" help:"List the rows of an outbox that failed for good, and why."`
	Retry   Retry            `cmd:"" help:"Have failed rows tried again, once their cause is removed."`
	Discard Discard          `cmd:"" help:"Remove failed rows: their commands are never submitted."`
	Version kong.VersionFlag `help:"Print the version and exit." group:"common"`
}

func main() {
	var flags Flags
	os.Exit(cli.Main("producer", "Submit commands to a pool. Submitting the same again is absorbed.", &flags, &flags.Common, os.Args[1:]))
}
