package main

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/alecthomas/kong"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/runner"
)

// Defaults of the embedded server.
const (
	defaultData   = "./.tallyman"
	defaultListen = "127.0.0.1:4222"
)

// Flags of the command line.
type Flags struct {
	cli.Common `embed:""`

	Embedded    bool             `help:"Start a NATS server in this process and create the pool there. This is also done when no server is named."`
	Data        string           `help:"Folder of the embedded server's store (default ./.tallyman)." placeholder:"DIR"`
	Listen      string           `help:"Address of the embedded server, host:port; port 0 takes a free one (default 127.0.0.1:4222)." placeholder:"ADDR"`
	Config      string           `help:"Pool file with the handlers." default:"./pool.yaml" placeholder:"FILE"`
	Queue       []string         `help:"Queue to work on; may be repeated." default:"default" placeholder:"NAME"`
	Concurrency int              `help:"How many handlers run at once." default:"100" placeholder:"N"`
	Lease       time.Duration    `help:"Lease that the pool must have; a pool that is created here gets it (default 30s there)." placeholder:"D"`
	Drain       time.Duration    `help:"How long handlers may go on after SIGTERM." default:"20s" placeholder:"D"`
	HTTP        string           `name:"http" help:"Address on which to serve /healthz, /readyz and /metrics." placeholder:"ADDR"`
	Version     kong.VersionFlag `help:"Print the version and exit." group:"common"`
}

// Validate checks what the parser cannot.
func (f *Flags) Validate() error {
	switch {
	case f.Concurrency < 1:
		return fmt.Errorf("--concurrency %d: give at least 1", f.Concurrency)
	case f.Drain < 0:
		return fmt.Errorf("--drain %v: must not be negative", f.Drain)
	case f.Lease != 0 && f.Lease < tallyman.MinLease:
		return fmt.Errorf("--lease %v: give at least %v", f.Lease, tallyman.MinLease)
	case f.Embedded && f.Configured():
		return errors.New("--embedded starts a server, and --server (NATS_URL) or --context (NATS_CONTEXT) names one: drop one of them")
	case f.Configured() && (f.Data != "" || f.Listen != ""):
		return errors.New("--data and --listen belong to the embedded server, and --server (NATS_URL) or --context (NATS_CONTEXT) names another: drop them")
	}
	return nil
}

// load reads the pool file.
func (f *Flags) load() (*runner.Config, error) {
	c, err := runner.Load(f.Config)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, cli.Usage(fmt.Errorf("there is no pool file %s; name one with --config, or begin with this:\n"+
			"handlers:\n"+
			"  - kind: echo\n"+
			"    exec: [cat]", f.Config))
	}
	if err != nil {
		return nil, cli.Usage(err)
	}
	return c, nil
}
