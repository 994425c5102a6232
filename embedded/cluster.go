package embedded

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// clusterTimeout bounds the wait for a leader. An election takes up to 9 s, and
// more than one when nodes come up slowly.
const clusterTimeout = 60 * time.Second

// Cluster is a JetStream cluster whose nodes all run in this process. Its
// methods are safe for concurrent use.
type Cluster struct {
	servers []*Server
	tempDir string // empty: the caller's directory
}

// StartCluster runs n nodes, joined over the loopback interface, and returns
// once all of them are up and have a leader for JetStream. n is at least 1;
// streams with three replicas need 3. The caller must Close it.
func StartCluster(n int, cfg Config) (*Cluster, error) {
	if n < 1 {
		return nil, fmt.Errorf("embedded: a cluster of %d nodes: need at least 1", n)
	}
	if cfg.Name == "" {
		cfg.Name = "embedded"
	}
	host := "127.0.0.1"
	if cfg.Listen != "" {
		var err error
		if host, _, err = splitListen(cfg.Listen); err != nil {
			return nil, err
		}
	}
	cfg.Listen = net.JoinHostPort(host, "0")
	c := &Cluster{}
	if cfg.Dir == "" {
		dir, err := os.MkdirTemp("", "tallyman-embedded-")
		if err != nil {
			return nil, fmt.Errorf("embedded: create temporary store: %w", err)
		}
		c.tempDir, cfg.Dir = dir, dir
	}
	// Every node must know the ports of all before the first one starts, so
	// they are chosen, let go and taken again. Someone else may be faster.
	var err error
	for range 5 {
		if err = c.start(n, cfg); err == nil {
			return c, nil
		}
		c.stop()
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	c.Close()
	return nil, err
}

func (c *Cluster) start(n int, cfg Config) error {
	ports, err := freePorts(n)
	if err != nil {
		return err
	}
	peers := make([]*url.URL, n)
	for i, p := range ports {
		peers[i] = &url.URL{Scheme: "nats", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(p))}
	}
	c.servers = make([]*Server, n)
	errs := make([]error, n)
	// At once, since a node that is alone waits for the others.
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			node := cfg
			node.Name = fmt.Sprintf("%s-%d", cfg.Name, i)
			node.Dir = filepath.Join(cfg.Dir, node.Name)
			c.servers[i], errs[i] = start(node, &route{cluster: cfg.Name, port: ports[i], peers: peers})
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return c.await(n)
}

// await returns when a leader knows want nodes and every running node has
// caught up with it.
func (c *Cluster) await(want int) error {
	deadline := time.NewTimer(clusterTimeout)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !c.ready(want) {
		select {
		case <-tick.C:
		case <-deadline.C:
			return fmt.Errorf("embedded: cluster has no leader with %d nodes after %v", want, clusterTimeout)
		}
	}
	return nil
}

func (c *Cluster) ready(want int) bool {
	led, current := false, 0
	for _, s := range c.servers {
		node, up := s.running()
		if !up {
			continue
		}
		if node.JetStreamIsCurrent() {
			current++
		}
		if node.JetStreamIsLeader() && len(node.JetStreamClusterPeers()) >= want {
			led = true
		}
	}
	return led && current >= want
}

func freePorts(n int) ([]int, error) {
	ports := make([]int, n)
	for i := range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("embedded: find a free port: %w", err)
		}
		// Held until all are found, or the same one might come twice.
		defer l.Close()
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports, nil
}

// URL returns the addresses of all nodes, separated by commas.
func (c *Cluster) URL() string {
	urls := make([]string, len(c.servers))
	for i, s := range c.servers {
		urls[i] = s.URL()
	}
	return strings.Join(urls, ",")
}

// Kill ends node i as Server.Kill does. It panics if there is no such node.
// A leader that is ended hands over first, which a killed process would not.
func (c *Cluster) Kill(i int) { c.servers[i].Kill() }

// Restart brings node i back as Server.Restart does, and returns once JetStream
// has a leader again and the node has caught up with its decisions; its copies
// of streams may still be behind. Where too few nodes run for a majority it
// does not wait. It panics if there is no such node.
func (c *Cluster) Restart(i int) error {
	if err := c.servers[i].Restart(); err != nil {
		return err
	}
	up := 0
	for _, s := range c.servers {
		if _, ok := s.running(); ok {
			up++
		}
	}
	if up <= len(c.servers)/2 {
		return nil
	}
	return c.await(up)
}

// Close shuts all nodes down, waits until they have ended, and removes the
// store if it was a temporary one. Closing twice does nothing.
func (c *Cluster) Close() {
	c.stop()
	if c.tempDir != "" {
		_ = os.RemoveAll(c.tempDir)
	}
}

func (c *Cluster) stop() {
	var wg sync.WaitGroup
	for _, s := range c.servers {
		if s != nil {
			wg.Go(s.Close)
		}
	}
	wg.Wait()
}
