package embedded_test

import (
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/embedded"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, cfg embedded.Config) *embedded.Server {
	t.Helper()
	s, err := embedded.Start(cfg)
	if err != nil {
		t.Fatalf("Start: %v", err)
	}
	t.Cleanup(s.Close)
	return s
}

// open returns a JetStream context that outlives restarts of the server.
func open(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.ReconnectJitter(0, 0))
	if err != nil {
		t.Fatalf("connect to %s: %v", url, err)
	}
	t.Cleanup(func() {
		closed := nc.StatusChanged(nats.CLOSED)
		nc.Close()
		<-closed
	})
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// retry calls fn until it succeeds or ctx ends.
func retry(t *testing.T, ctx context.Context, what string, fn func(context.Context) error) {
	t.Helper()
	for {
		try, cancel := context.WithTimeout(ctx, 3*time.Second)
		err := fn(try)
		cancel()
		if err == nil {
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		}
	}
}

func TestServer_Restart(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(*embedded.Server){
		"data and port survive a restart":                       func(*embedded.Server) {},
		"data and port survive a kill, also in a temporary dir": (*embedded.Server).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, embedded.Config{})
			url := s.URL()
			js := open(t, url)
			ctx := t.Context()
			if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "kept", Subjects: []string{"kept"}}); err != nil {
				t.Fatal(err)
			}
			if _, err := js.Publish(ctx, "kept", []byte("payload")); err != nil {
				t.Fatal(err)
			}
			stop(s)
			if err := s.Restart(); err != nil {
				t.Fatalf("Restart: %v", err)
			}
			if got := s.URL(); got != url {
				t.Errorf("URL after restart: got %s, want %s", got, url)
			}
			retry(t, ctx, "read what was stored before", func(ctx context.Context) error {
				st, err := js.Stream(ctx, "kept")
				if err != nil {
					return err
				}
				msg, err := st.GetMsg(ctx, 1)
				if err == nil && string(msg.Data) != "payload" {
					t.Fatalf("payload: got %q, want %q", msg.Data, "payload")
				}
				return err
			})
		})
	}
}

func TestServer_Kill(t *testing.T) {
	t.Parallel()
	s := start(t, embedded.Config{})
	s.Kill()
	s.Kill()
	if nc, err := nats.Connect(s.URL()); err == nil {
		nc.Close()
		t.Error("connected to a killed server")
	}
	if _, err := os.Stat(s.Dir()); err != nil {
		t.Errorf("store of a killed server: %v", err)
	}
}

func TestServer_Close(t *testing.T) {
	t.Parallel()
	t.Run("removes a temporary store and cannot be restarted", func(t *testing.T) {
		t.Parallel()
		s := start(t, embedded.Config{})
		s.Close()
		s.Close()
		if _, err := os.Stat(s.Dir()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("temporary store after Close: got %v, want it gone", err)
		}
		if err := s.Restart(); err == nil {
			t.Error("Restart after Close succeeded")
		}
	})
	t.Run("keeps the caller's store, which the next server takes up", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(t.TempDir(), "made by Start")
		s := start(t, embedded.Config{Dir: dir})
		js := open(t, s.URL())
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "kept"}); err != nil {
			t.Fatal(err)
		}
		s.Close()
		next := start(t, embedded.Config{Dir: dir})
		if _, err := open(t, next.URL()).Stream(t.Context(), "kept"); err != nil {
			t.Errorf("stream in the next server: %v", err)
		}
	})
}

// While a server is down anybody may be given its port as a free one.
func TestServer_RestartWaitsForItsPort(t *testing.T) {
	t.Parallel()
	s := start(t, embedded.Config{Dir: t.TempDir()})
	s.Kill()
	u, err := url.Parse(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	restarted := make(chan error, 1)
	go func() { restarted <- s.Restart() }()
	time.AfterFunc(200*time.Millisecond, func() { taken.Close() })
	if err := <-restarted; err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
}

func TestStart_Refuses(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	inUse := start(t, embedded.Config{Dir: t.TempDir()})
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	faulty := filepath.Join(t.TempDir(), "faulty.conf")
	if err := os.WriteFile(faulty, []byte("no_such_setting: 1"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		cfg  embedded.Config
		is   error // nil: only the text counts
		says string
	}{
		"a taken port":                {embedded.Config{Listen: taken.Addr().String()}, syscall.EADDRINUSE, taken.Addr().String()},
		"a store in use":              {embedded.Config{Dir: inUse.Dir()}, embedded.ErrDirInUse, inUse.Dir()},
		"a directory that is a file":  {embedded.Config{Dir: file}, syscall.ENOTDIR, file},
		"an address without port":     {embedded.Config{Listen: "127.0.0.1"}, nil, "127.0.0.1"},
		"a port out of range":         {embedded.Config{Listen: "127.0.0.1:70000"}, nil, "70000"},
		"a payload above the maximum": {embedded.Config{MaxPayload: 1 << 30}, nil, "MaxPayload"},
		"a missing configuration":     {embedded.Config{ConfigFile: faulty + ".missing"}, os.ErrNotExist, "faulty.conf.missing"},
		"a faulty configuration":      {embedded.Config{ConfigFile: faulty}, nil, "no_such_setting"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := embedded.Start(tt.cfg)
			if err == nil {
				s.Close()
				t.Fatal("Start succeeded")
			}
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("error: got %v, want one that is %v", err, tt.is)
			}
			if !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error: got %q, want it to name %q", err, tt.says)
			}
		})
	}
}

func TestStart_ConfigFile(t *testing.T) {
	t.Parallel()
	conf := filepath.Join(t.TempDir(), "server.conf")
	err := os.WriteFile(conf, []byte(`
		port: 1
		max_payload: 2000
		authorization { users: [ { user: ann, password: secret } ] }
	`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, embedded.Config{ConfigFile: conf, Listen: "127.0.0.1:0", MaxPayload: 3000})
	if nc, err := nats.Connect(s.URL()); !errors.Is(err, nats.ErrAuthorization) {
		if err == nil {
			nc.Close()
		}
		t.Errorf("connect without credentials: got %v, want %v", err, nats.ErrAuthorization)
	}
	nc, err := nats.Connect(s.URL(), nats.UserInfo("ann", "secret"))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if got, want := nc.MaxPayload(), int64(3000); got != want {
		t.Errorf("MaxPayload: got %d, want %d, since Config wins over the file", got, want)
	}
}
