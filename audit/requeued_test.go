package audit_test

import (
	"bytes"
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/kvstate"
)

// TestRun_WhileManyAreRequeued has the audit meet, at every look, another command
// whose record says that it was sent back and that is published a moment later.
func TestRun_WhileManyAreRequeued(t *testing.T) {
	t.Parallel()
	server := pooltest.Server(t)
	s := newSceneOn(t, server, tallyman.Settings{})
	const n = 3
	s.submit(t, 1, n)
	revisions := map[int]uint64{}
	write := func(i int, state kvstate.State) {
		t.Helper()
		id := fmt.Sprintf("c-%d", i)
		r := &kvstate.Record{ID: id, Kind: "echo", Queue: "default", Digest: dedupe.Digest("echo", nil), State: state, Seqs: []uint64{uint64(i)}, Revision: revisions[i]}
		revision, err := s.Records().WriteWait(t.Context(), command.Token(id), r)
		if err != nil {
			t.Error(err)
		}
		revisions[i] = revision
	}
	for i := 1; i <= n; i++ {
		write(i, kvstate.Parked)
		if err := s.commands(t).DeleteMsg(t.Context(), uint64(i)); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex // guards the two, and revisions
	requeued, asked := 0, map[int]int{}
	listening := func(sent []byte) {
		mu.Lock()
		defer mu.Unlock()
		if bytes.Contains(sent, []byte("$JS.API.CONSUMER.CREATE.KV_main")) && requeued < n { // a scan begins
			requeued++
			write(requeued, kvstate.Requeued)
		}
		for i := 1; i <= requeued; i++ {
			if !bytes.Contains(sent, fmt.Appendf(nil, `.c-%d"`, i)) {
				continue
			}
			if asked[i]++; asked[i] == 2 { // it is looked for again
				if _, err := s.js.Publish(t.Context(), s.Commands().Subject("default", "echo", command.Token(fmt.Sprintf("c-%d", i))), nil); err != nil {
					t.Error(err)
				}
			}
		}
	}
	pool, err := tallyman.Open(t.Context(), pooltest.Connect(t, server.URL(), nats.SetCustomDialer(ear(listening))), "main")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	got, err := audit.Run(t.Context(), pool.Commands(), pool.Records(), audit.Options{})
	if err != nil || !got.Balanced {
		t.Errorf("got %v, %v, want balanced books: each was published", got.Findings, err)
	}
	mu.Lock()
	defer mu.Unlock()
	if requeued == 0 || asked[1] < 2 {
		t.Errorf("the audit met %d and asked %v times", requeued, asked)
	}
}

// ear is a nats.CustomDialer: it hears of everything before it is sent.
type ear func(sent []byte)

func (e ear) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	return &heard{conn, e}, err
}

type heard struct {
	net.Conn
	ear ear
}

func (h *heard) Write(b []byte) (int, error) {
	h.ear(b)
	return h.Conn.Write(b)
}
