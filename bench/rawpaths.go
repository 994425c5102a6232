package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// errand is a delivery on its way along a path: writes of its entry one after
// the other, each over the one before, and then what ends it.
type errand struct {
	delivery jetstream.Msg
	key      string
	left     int    // writes to come
	revision uint64 // to expect in the next write
	blind    bool   // the next write expects nothing
	unborn   int    // follow-ups whose answer is to come
}

// rawWalk is the bound of a path: the least writes that it needs, pipelined,
// with no read at all and no answer to any failure.
type rawWalk struct {
	js    jetstream.JetStream
	path  path
	value []byte
	free  chan struct{} // one for each delivery under way
	fail  context.CancelCauseFunc

	mu      sync.Mutex
	sent    map[*nats.Msg]*errand
	waiting map[string]uint64 // revision of a failed attempt's entry, by key
}

// Walk implements walker.
func (raw) Walk(ctx context.Context, nc *nats.Conn, p path) error {
	failed, fail := context.WithCancelCause(context.Background())
	defer fail(nil)
	w := &rawWalk{
		path: p, value: bytes.Repeat([]byte("r"), receiptSize), free: make(chan struct{}, p.width), fail: fail,
		sent: make(map[*nats.Msg]*errand, p.width), waiting: make(map[string]uint64),
	}
	if p.ends == "parked" {
		w.value = bytes.Repeat([]byte("r"), receiptSize+payloadSize) // it holds the command
	}
	var err error
	// Never full: the handler below, which sends as well, must not wait.
	if w.js, err = jetstream.New(nc,
		jetstream.WithPublishAsyncMaxPending(2*p.width*(1+p.born)),
		jetstream.WithPublishAsyncAckHandler(func(_ jetstream.JetStream, m *nats.Msg, ack *jetstream.PubAck) {
			if err := w.stored(m, ack); err != nil {
				fail(err)
			}
		}),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, m *nats.Msg, err error) {
			fail(fmt.Errorf("write %s: %w", m.Subject, err))
		})); err != nil {
		return err
	}
	consumer, err := w.js.Consumer(ctx, commandStream, queueName)
	if err != nil {
		return err
	}
	take := func(delivery jetstream.Msg) error {
		select {
		case w.free <- struct{}{}:
			return w.take(delivery)
		case <-ctx.Done():
			return nil
		case <-failed.Done():
			return context.Cause(failed)
		}
	}
	for ctx.Err() == nil && failed.Err() == nil {
		if err := fetchEach(ctx, consumer, take); err != nil {
			return err
		}
	}
	return context.Cause(failed)
}

func (w *rawWalk) take(delivery jetstream.Msg) error {
	subject := delivery.Subject()
	e := &errand{delivery: delivery, key: subject[strings.LastIndexByte(subject, '.')+1:], left: w.path.writes, blind: w.path.held}
	if w.path.name == "retries" {
		w.mu.Lock()
		revision, again := w.waiting[e.key]
		delete(w.waiting, e.key)
		w.mu.Unlock()
		if e.left = 1; again {
			e.left, e.revision = w.path.writes-1, revision
		}
	}
	return w.write(e)
}

// write sends the errand's next entry.
func (w *rawWalk) write(e *errand) error {
	m := &nats.Msg{Subject: "$KV." + poolName + "." + e.key, Data: w.value}
	if !e.blind {
		m.Header = nats.Header{jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(e.revision, 10)}}
	}
	return w.send(e, m)
}

func (w *rawWalk) send(e *errand, m *nats.Msg) error {
	w.mu.Lock()
	w.sent[m] = e
	w.mu.Unlock()
	if _, err := w.js.PublishMsgAsync(m, jetstream.WithStallWait(time.Minute)); err != nil {
		return fmt.Errorf("send %s: %w", m.Subject, err)
	}
	return nil
}

// stored moves an errand on when something of it was stored.
func (w *rawWalk) stored(m *nats.Msg, ack *jetstream.PubAck) error {
	w.mu.Lock()
	e := w.sent[m]
	delete(w.sent, m)
	w.mu.Unlock()
	if e.unborn > 0 {
		if e.unborn--; e.unborn == 0 {
			return w.end(e.delivery.Ack())
		}
		return nil
	}
	e.left, e.revision, e.blind = e.left-1, ack.Sequence, false
	switch {
	case e.left > 0:
		return w.write(e)
	case w.path.born > 0:
		return w.bear(e)
	case w.path.name == "retries" && w.firstAttempt(e):
		return w.end(e.delivery.Nak())
	}
	return w.end(e.delivery.Ack())
}

// firstAttempt reports whether an attempt was the first, which fails, and keeps
// the revision of its entry for the next one.
func (w *rawWalk) firstAttempt(e *errand) bool {
	meta, err := e.delivery.Metadata()
	if err != nil {
		w.fail(fmt.Errorf("read delivery %s: %w", e.key, err))
		return false
	}
	if meta.NumDelivered > 1 {
		return false
	}
	w.mu.Lock()
	w.waiting[e.key] = e.revision
	w.mu.Unlock()
	return true
}

// bear submits the follow-ups of an errand.
func (w *rawWalk) bear(e *errand) error {
	e.unborn = w.path.born
	for i := range w.path.born {
		id := e.key + "/" + strconv.Itoa(i+1)
		m := &nats.Msg{
			Subject: poolName + ".commands." + laterQueue + "." + kindName + "." + id,
			Header:  nats.Header{jetstream.MsgIDHeader: {id}},
			Data:    e.delivery.Data(),
		}
		if err := w.send(e, m); err != nil {
			return err
		}
	}
	return nil
}

// end makes room for another delivery.
func (w *rawWalk) end(err error) error {
	<-w.free
	if err != nil {
		return fmt.Errorf("ack or nak: %w", err)
	}
	return nil
}

// Hold implements walker.
func (raw) Hold(ctx context.Context, nc *nats.Conn, n int) error {
	failed, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	js, err := jetstream.New(nc,
		jetstream.WithPublishAsyncMaxPending(window),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, m *nats.Msg, err error) {
			fail(fmt.Errorf("claim %s: %w", m.Subject, err))
		}))
	if err != nil {
		return err
	}
	consumer, err := js.Consumer(ctx, commandStream, queueName)
	if err != nil {
		return err
	}
	value := bytes.Repeat([]byte("c"), receiptSize)
	for held := 0; held < n && failed.Err() == nil; {
		if err := fetchEach(failed, consumer, func(delivery jetstream.Msg) error {
			held++
			subject := delivery.Subject()
			_, err := js.PublishMsgAsync(&nats.Msg{
				Subject: "$KV." + poolName + "." + subject[strings.LastIndexByte(subject, '.')+1:], Data: value,
			}, jetstream.WithStallWait(time.Minute))
			return err
		}); err != nil {
			return err
		}
	}
	<-failed.Done()
	if err := context.Cause(failed); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
