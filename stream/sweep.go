package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pipeline"
)

// ErrRetention means that the stream exists and lets go of commands in the
// other way, which the server cannot change.
var ErrRetention = errors.New("it keeps acked commands in another way, and that is fixed when it is made")

// Sweeps reports whether acked commands stay in this stream until they are
// swept out, instead of leaving it with their ack.
func (s *Stream) Sweeps() bool { return s.sweeps }

// Name returns the stream's name.
func (s *Stream) Name() string { return s.name }

// retention of a stream whose commands are swept out, or leave with their ack.
func retention(sweep bool) jetstream.RetentionPolicy {
	if sweep {
		return jetstream.LimitsPolicy
	}
	return jetstream.WorkQueuePolicy
}

// sweeps says the same of a stream that exists. The server lets other tools make
// interest of limits, and takes that back; a work queue stays one.
func sweeps(c jetstream.StreamConfig) bool { return c.Retention != jetstream.WorkQueuePolicy }

// Lying is a command in the stream, without its body.
type Lying struct {
	Seq   uint64
	Queue string
	Token command.Token
}

// PageSize bounds the commands of one Page.
const PageSize = walkBatch

// Page returns up to limit commands of a queue, or of all if queue is empty, in
// rising order from sequence from on, and whether there are more behind them.
// Limit is 1 to PageSize.
//
// On a replicated stream a replica that lags may answer: then the newest are
// missing, and some are shown that have left. Up to the last one it returns,
// none that is in the stream is missing.
func (s *Stream) Page(ctx context.Context, queue string, from uint64, limit int) (page []Lying, more bool, err error) {
	q := pipeline.Query{Stream: s.name, From: from, Batch: min(max(limit, 1), PageSize), Bytes: walkBytes}
	if queue != "" {
		q.Subject = s.filter(queue)
	}
	page, more, err = pipeline.Page(ctx, s.pipe, q, s.lying)
	if err != nil {
		return nil, false, fmt.Errorf("stream: read commands from sequence %d: %w", from, err)
	}
	return page, more, nil
}

// Copies returns the stored commands whose id has this token, whatever their
// queues and kinds, oldest first. See Page for replicas that lag.
func (s *Stream) Copies(ctx context.Context, token command.Token) ([]Lying, error) {
	q := pipeline.Query{Stream: s.name, Subject: s.prefix + "*.*." + string(token), Batch: walkBatch, Bytes: walkBytes}
	var all []Lying
	for {
		page, more, err := pipeline.Page(ctx, s.pipe, q, s.lying)
		if err != nil {
			return nil, fmt.Errorf("stream: read the copies of %s: %w", token, err)
		}
		if all = append(all, page...); !more {
			return all, nil
		}
		q.From = page[len(page)-1].Seq + 1
	}
}

func (s *Stream) lying(m pipeline.Stored) Lying {
	l := Lying{Seq: m.Seq}
	l.Queue, _, l.Token = s.parse(m.Subject)
	return l
}

// Subjects matches the subjects of a queue's commands, as the nats CLI takes it.
func (s *Stream) Subjects(queue string) string { return s.filter(queue) }

// filter matches the subjects of a queue's commands.
func (s *Stream) filter(queue string) string { return s.prefix + queue + ".>" }

// Purge takes every command with a sequence below below out of the stream, or
// those of one queue if queue is not empty, and returns how many that were. A
// record must account for each of them before, or they are lost. For all
// queues at once the server drops whole blocks; for one it looks at every
// subject that the queue has in the stream, and writes a mark for each command that it takes out.
//
// A purge has a side effect: whatever a consumer had in line to be delivered
// again, and did not find a pull for yet, is delivered only when another ack
// wait has passed. So purge when there is nothing in line: see Queue.InLine.
//
// After ErrIndeterminate it may or may not be done, and repeating it is safe.
func (s *Stream) Purge(ctx context.Context, queue string, below uint64) (purged uint64, err error) {
	if below < 2 {
		return 0, nil // to the server, 0 means everything
	}
	ask := map[string]any{"seq": below}
	if queue != "" {
		ask["filter"] = s.filter(queue)
	}
	body, err := json.Marshal(ask)
	if err != nil {
		return 0, fmt.Errorf("stream: purge below sequence %d: %w", below, err)
	}
	m, err := s.change(ctx, &nats.Msg{Subject: "$JS.API.STREAM.PURGE." + s.name, Data: body})
	if err != nil {
		return 0, fmt.Errorf("stream: purge below sequence %d: %w", below, err)
	}
	var got struct {
		Error   *pipeline.APIError `json:"error"`
		Success bool               `json:"success"`
		Purged  uint64             `json:"purged"`
	}
	switch err := json.Unmarshal(m.Data, &got); {
	case err != nil:
		return 0, fmt.Errorf("stream: purge below sequence %d: %w: %w", below, ErrIndeterminate, err)
	case got.Error != nil:
		return 0, fmt.Errorf("stream: purge below sequence %d: %w", below, classify(got.Error))
	case !got.Success:
		return 0, fmt.Errorf("stream: purge below sequence %d: the server did not", below)
	}
	return got.Purged, nil
}

// removeWindow is how many removals are under way at once.
const removeWindow = 256

// RemoveMany is Remove for many sequences, pipelined. It returns how many of
// them are gone, and the first error; after that no more are sent.
func (s *Stream) RemoveMany(ctx context.Context, seqs []uint64) (gone int, err error) {
	var mu sync.Mutex
	var first error
	for batch := range slices.Chunk(seqs, removeWindow) {
		var under sync.WaitGroup
		for _, seq := range batch {
			under.Go(func() {
				err := s.Remove(ctx, seq)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					gone++
				} else if first == nil {
					first = err
				}
			})
		}
		under.Wait()
		if first != nil {
			break
		}
	}
	return gone, first
}

// whole reports whether a consumer is as Create makes it in all that its ack
// floor rests on: it is given every command of its queue, and lets go of none
// without an ack.
func (s *Stream) whole(c jetstream.ConsumerConfig) bool {
	return c.DeliverPolicy == jetstream.DeliverAllPolicy && c.AckPolicy == jetstream.AckExplicitPolicy &&
		c.MaxDeliver <= 0 && c.FilterSubject == s.filter(c.Durable) && len(c.FilterSubjects) == 0
}

// QueueNames returns the names of the queues that have a consumer, with less
// work for the server than Queues. ErrDenied means that this user may not ask.
func (s *Stream) QueueNames(ctx context.Context) ([]string, error) {
	var names []string
	for {
		body, err := json.Marshal(map[string]int{"offset": len(names)})
		if err != nil {
			return nil, fmt.Errorf("stream: list the names of queues: %w", err)
		}
		m, err := s.pipe.Ask(ctx, "$JS.API.CONSUMER.NAMES."+s.name, body)
		if err != nil {
			return nil, fmt.Errorf("stream: list the names of queues: %w", err)
		}
		var got struct {
			Error     *pipeline.APIError `json:"error"`
			Total     int                `json:"total"`
			Consumers []string           `json:"consumers"`
		}
		if err := json.Unmarshal(m.Data, &got); err != nil {
			return nil, fmt.Errorf("stream: list the names of queues: %w", err)
		}
		if got.Error != nil {
			return nil, fmt.Errorf("stream: list the names of queues: %w", classify(got.Error))
		}
		names = append(names, got.Consumers...)
		if len(got.Consumers) == 0 || len(names) >= got.Total {
			return names, nil
		}
	}
}
