package embedded

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"

	natsd "github.com/nats-io/nats-server/v2/server"
)

// maxPayload is the largest payload that nats-server accepts in its settings
// without a warning; above it one message can stall a whole connection.
const maxPayload = 64 << 20

// Config describes an embedded server. The zero value is ready for use.
type Config struct {
	// Dir holds the JetStream store and is created if it is missing. Empty means
	// store_dir of ConfigFile, or else a temporary directory that Close removes.
	// Every node of a cluster has a directory of its own in it.
	Dir string
	// Listen is the address for clients, host:port. Port 0 takes a free one.
	// Empty means the address in ConfigFile, or else a free port of 127.0.0.1.
	// StartCluster uses the host alone; every node takes a free port.
	Listen string
	// Name is the name of the server, or of the cluster, whose nodes append
	// their number. Empty means one made up by the server, or "embedded".
	Name string
	// MaxPayload limits one message, headers included, in bytes. 0 means the
	// server's default of 1 MiB; the most is 64 MiB.
	MaxPayload int
	// SyncAlways flushes every write to disk before it is acknowledged, which
	// makes acknowledged writes survive a power cut at a high price.
	SyncAlways bool
	// Logger gets the server's warnings and errors as such, and its notices at
	// debug level. Nil means silent.
	Logger *slog.Logger
	// ConfigFile names a nats-server configuration file, for users, permissions
	// and what else the fields above do not say. Where both speak, they win.
	ConfigFile string
}

// route is what a node of a cluster needs to know of the others.
type route struct {
	cluster string
	port    int
	peers   []*url.URL
}

// options turns cfg into fresh settings for a server. They must not be used
// twice, since a server writes into its settings.
func (cfg Config) options() (*natsd.Options, error) {
	opts := &natsd.Options{}
	if cfg.ConfigFile != "" {
		var err error
		if opts, err = natsd.ProcessConfigFile(cfg.ConfigFile); err != nil {
			return nil, fmt.Errorf("embedded: read server configuration: %w", err)
		}
	}
	opts.NoLog, opts.NoSigs, opts.DontListen = true, true, false
	opts.JetStream = true
	opts.DisableJetStreamBanner = true
	if cfg.Dir != "" {
		opts.StoreDir = cfg.Dir
	}
	if cfg.Name != "" {
		opts.ServerName = cfg.Name
	}
	if cfg.SyncAlways {
		opts.SyncAlways = true
	}
	switch {
	case cfg.MaxPayload < 0 || cfg.MaxPayload > maxPayload:
		return nil, fmt.Errorf("embedded: MaxPayload is %d bytes: must be between 0 (the server's default) and %d", cfg.MaxPayload, maxPayload)
	case cfg.MaxPayload > 0:
		opts.MaxPayload = int32(cfg.MaxPayload)
		// The server refuses a payload above what a connection may have pending.
		opts.MaxPending = max(opts.MaxPending, natsd.MAX_PENDING_SIZE)
	}
	if cfg.Listen != "" {
		host, port, err := splitListen(cfg.Listen)
		if err != nil {
			return nil, err
		}
		opts.Host, opts.Port = host, port
	}
	if opts.Host == "" {
		opts.Host = "127.0.0.1"
	}
	if opts.Port == 0 {
		opts.Port = natsd.RANDOM_PORT
	}
	return opts, nil
}

func splitListen(addr string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, fmt.Errorf("embedded: Listen %q is not host:port: %w", addr, err)
	}
	port, err = strconv.Atoi(text)
	if err == nil && (port < 0 || port > 65535) {
		err = errors.New("out of range")
	}
	if err != nil {
		return "", 0, fmt.Errorf("embedded: Listen %q: port must be a number from 0 (a free one) to 65535: %w", addr, err)
	}
	if port == 0 {
		port = natsd.RANDOM_PORT
	}
	return host, port, nil
}

// with adds to opts what makes the server a node of a cluster.
func (r *route) with(opts *natsd.Options) {
	if r == nil {
		return
	}
	opts.Cluster.Name, opts.Cluster.Host, opts.Cluster.Port = r.cluster, "127.0.0.1", r.port
	// One connection per pair of nodes: traffic on loopback needs no more, and
	// each extra one costs goroutines and start-up time.
	opts.Cluster.PoolSize = -1
	opts.Routes = r.peers
}
