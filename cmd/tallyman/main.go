// Command tallyman is the operator's tool: it creates pools, shows what they
// hold and proves that their books balance.
package main

import (
	"os"

	"github.com/alecthomas/kong"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/cmd/internal/demo"
)

const description = "Create a pool, look into it, and prove that no command was lost."

// grammar is the command line; every subcommand has a file of its own.
type grammar struct {
	cli.Common

	Version kong.VersionFlag `help:"Print the version and exit." group:"common"`

	Demo    demo.Command   `cmd:"" help:"Pack a directory with workers that are killed and frozen, and prove that nothing was lost or done twice. Brings its own server."`
	Init    initCommand    `cmd:"" help:"Create the pool, or bring it up to date. Safe to repeat."`
	Status  statusCommand  `cmd:"" help:"Show settings, queues and how many commands are in which state."`
	List    listCommand    `cmd:"" help:"List the records of commands."`
	Show    showCommand    `cmd:"" help:"Show everything about one command."`
	Why     whyCommand     `cmd:"" help:"Tell what happened to a command, and what may be done next."`
	Watch   watchCommand   `cmd:"" help:"Show changes of records as they happen."`
	Parked  parkedCommand  `cmd:"" help:"List the parked commands with the reason."`
	Requeue requeueCommand `cmd:"" help:"Send parked commands back: they run again, attempts start anew."`
	Resolve resolveCommand `cmd:"" help:"State the result of a parked command: it becomes the receipt."`
	Discard discardCommand `cmd:"" help:"Give parked commands up."`
	Cancel  cancelCommand  `cmd:"" help:"Take out commands that have not ended."`
	Pause   pauseCommand   `cmd:"" help:"Stop the deliveries of a queue."`
	Resume  resumeCommand  `cmd:"" help:"End the pause of a queue."`
	Reshard reshardCommand `cmd:"" help:"Spread the pool over another number of shards, while nothing runs."`
	Wait    waitCommand    `cmd:"" help:"Wait for the outcome of a command and print its result."`
	Audit   auditCommand   `cmd:"" help:"Prove that every command is accounted for. Exit code 6 if not."`
	Decode  decodeCommand  `cmd:"" help:"Read one MessagePack value on stdin and print it as JSON. Asks no server."`
	Digest  digestCommand  `cmd:"" help:"Print the SHA-256 of stdin in hexadecimal. Asks no server."`

	DemoWorker demo.Worker `cmd:"" hidden:""`
}

func main() {
	var g grammar
	os.Exit(cli.Main("tallyman", description, &g, &g.Common, os.Args[1:]))
}
