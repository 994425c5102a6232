// Command tallyman is the operator's view of a pool.
package main

import (
	"os"

	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/cmd/internal/demo"
)

type grammar struct {
	cli.Common
	Demo       demo.Command `cmd:"" help:"Pack a directory with workers that are killed and frozen, and prove that nothing was lost or done twice."`
	DemoWorker demo.Worker  `cmd:"" hidden:""`
}

func main() {
	var g grammar
	os.Exit(cli.Main("tallyman", "Look after a pool of commands.", &g, &g.Common, os.Args[1:]))
}
