package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// clusterSize is how many servers a cluster has, and how many replicas its assets.
const clusterSize = 3

// cluster is a JetStream cluster of three servers, each of them a process, on
// this one machine.
type cluster struct{ sync bool }

func (c cluster) name() string {
	if c.sync {
		return syncedNATS + " x 3"
	}
	return "nats-server x 3"
}
func (cluster) missing() string { return "" } // it is part of the program

func (c cluster) start(ctx context.Context, dir string) (_ *runningServer, err error) {
	ports := make([]int, clusterSize)
	for i := range ports {
		if ports[i], err = freePort(); err != nil {
			return nil, err
		}
	}
	var nodes []*process
	stop := func() {
		for _, n := range nodes {
			n.close()
		}
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	var urls []string
	for i := range ports {
		n, err := startProcess(ctx, order{Role: "node", Dir: dir, Node: i, Ports: ports, Sync: c.sync})
		if err != nil {
			return nil, err
		}
		nodes, urls = append(nodes, n), append(urls, n.ready.URL)
	}
	s := &runningServer{
		url: strings.Join(urls, ","), version: nodes[0].ready.Version, durability: nodes[0].ready.Durability,
		cpu:     func() (time.Duration, error) { return treeCPU(os.Getpid()) },
		traffic: func() (traffic, error) { return ofAll(ctx, nodes) }, stop: stop,
	}
	return s, replicated(ctx, s.url)
}

// startNode runs one server of a cluster in this process.
func startNode(o order) (*runningServer, error) {
	routes := make([]*url.URL, len(o.Ports))
	for i, port := range o.Ports {
		routes[i] = &url.URL{Scheme: "nats", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}
	}
	name := fmt.Sprintf("bench-%d", o.Node)
	return startNATS(&server.Options{
		ServerName: name,
		SyncAlways: o.Sync,
		StoreDir:   filepath.Join(o.Dir, name),
		Cluster:    server.ClusterOpts{Name: "bench", Host: "127.0.0.1", Port: o.Ports[o.Node]},
		Routes:     routes,
	}, len(o.Ports))
}

// replicated returns once the cluster can make an asset with all its replicas.
func replicated(ctx context.Context, urls string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return connected(urls, func(nc *nats.Conn) error {
		js, err := jetstream.New(nc)
		if err != nil {
			return err
		}
		const probe = "bench_probe"
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			try, done := context.WithTimeout(ctx, 2*time.Second)
			_, err := js.CreateStream(try, jetstream.StreamConfig{Name: probe, Replicas: clusterSize})
			done()
			if err == nil {
				return js.DeleteStream(ctx, probe)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return fmt.Errorf("wait for the cluster: %w", errors.Join(ctx.Err(), err))
			}
		}
	})
}
