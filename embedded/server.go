package embedded

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	natsd "github.com/nats-io/nats-server/v2/server"
)

const (
	// startTimeout bounds how long one server may take to listen. Opening a store
	// of a million messages takes less than a second, but machines are busy.
	startTimeout = 30 * time.Second
	// portTimeout is how long a restart waits for its port, and portPause how
	// long between two looks: while the server was down anybody may have been
	// given it as a free one.
	portTimeout = time.Minute
	portPause   = 50 * time.Millisecond
)

// Server is a nats-server in this process. Its methods are safe for concurrent
// use.
type Server struct {
	cfg     Config
	route   *route // nil: a server of its own
	dir     string
	tempDir bool
	host    string // as listened on
	port    int    // never 0 once started

	mu     sync.Mutex
	nats   *natsd.Server // nil: down
	guard  *os.File      // held while nats is not nil
	closed bool
}

// Start runs a server and returns once clients can connect to it. The caller
// must Close it. An error says what failed: a taken port, a directory that
// cannot be written, a store in use (ErrDirInUse), a faulty configuration file.
func Start(cfg Config) (*Server, error) { return start(cfg, nil) }

func start(cfg Config, r *route) (*Server, error) {
	opts, err := cfg.options()
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, route: r, dir: opts.StoreDir, host: opts.Host, port: opts.Port}
	if s.dir == "" {
		if s.dir, err = os.MkdirTemp("", "tallyman-embedded-"); err != nil {
			return nil, fmt.Errorf("embedded: create temporary store: %w", err)
		}
		s.tempDir = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.startLocked(); err != nil {
		s.removeTempDir()
		return nil, err
	}
	return s, nil
}

func (s *Server) startLocked() error {
	opts, err := s.cfg.options()
	if err != nil {
		return err
	}
	s.route.with(opts)
	opts.StoreDir, opts.Host, opts.Port = s.dir, s.host, s.port
	// The server says that a port is taken only after it has opened the store,
	// and in words alone.
	if err := probeListen(opts.Host, opts.Port); err != nil {
		return err
	}
	if opts.Cluster.Port > 0 {
		if err := probeListen(opts.Cluster.Host, opts.Cluster.Port); err != nil {
			return err
		}
	}
	guard, err := guardDir(s.dir)
	if err != nil {
		return err
	}
	nats, err := natsd.NewServer(opts)
	if err != nil {
		guard.Close()
		return fmt.Errorf("embedded: create server: %w", err)
	}
	log := &logger{to: s.cfg.Logger}
	nats.SetLoggerV2(log, false, false, false)
	nats.Start()
	err = log.failure()
	if err == nil && !nats.ReadyForConnections(startTimeout) {
		if err = log.failure(); err == nil {
			err = fmt.Errorf("not ready for connections after %v", startTimeout)
		}
	}
	if err != nil {
		nats.Shutdown()
		nats.WaitForShutdown()
		guard.Close()
		return fmt.Errorf("embedded: start server: %w", err)
	}
	s.nats, s.guard = nats, guard
	s.port = nats.Addr().(*net.TCPAddr).Port
	return nil
}

func probeListen(host string, port int) error {
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(max(port, 0))))
	if err != nil {
		return fmt.Errorf("embedded: cannot listen for connections; is another server running there?: %w", err)
	}
	return l.Close()
}

// URL returns the address for clients, such as nats://127.0.0.1:4222. For a
// server that listens on all interfaces it names the loopback one.
func (s *Server) URL() string {
	host := s.host
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if ip.To4() == nil {
			host = "::1"
		}
	}
	return "nats://" + net.JoinHostPort(host, strconv.Itoa(s.port))
}

// Dir returns the directory of the store.
func (s *Server) Dir() string { return s.dir }

// Close shuts the server down in order and waits until it has ended. It removes
// the store if it was a temporary one. Closing twice does nothing.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.stopLocked()
	s.removeTempDir()
}

// Kill ends the server without a word to its clients: connections are cut and
// waiting pull requests get no answer. It returns when the server has ended. The
// store stays, temporary or not, and Restart takes it up again. What was
// written is in the files, unlike after the kill of a whole process.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nats == nil {
		return
	}
	if conns, err := s.nats.Connz(&natsd.ConnzOptions{Limit: 1 << 20}); err == nil {
		for _, c := range conns.Conns {
			// An error means that the client is gone already.
			_ = s.nats.DisconnectClientByID(c.Cid)
		}
	}
	s.stopLocked()
}

// Restart brings the server back on the same port with the same store, after a
// Kill or, shutting it down first, while it runs. It reads the configuration
// file again. If somebody else has got the port meanwhile it waits for it, a
// minute at most. It returns an error, and the server stays down, under the
// conditions of Start, and after Close.
func (s *Server) Restart() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.New("embedded: restart: the server was closed; start a new one")
	}
	s.stopLocked()
	for end := time.Now().Add(portTimeout); ; time.Sleep(portPause) {
		if err := s.startLocked(); !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(end) {
			return err
		}
	}
}

func (s *Server) stopLocked() {
	if s.nats == nil {
		return
	}
	s.nats.Shutdown()
	s.nats.WaitForShutdown()
	s.guard.Close()
	s.nats, s.guard = nil, nil
}

func (s *Server) removeTempDir() {
	if s.tempDir {
		// What is left of a temporary directory harms nobody.
		_ = os.RemoveAll(s.dir)
	}
}

// running returns the server if it is up.
func (s *Server) running() (*natsd.Server, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nats, s.nats != nil
}
