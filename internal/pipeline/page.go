package pipeline

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Query asks for a part of a stream that answers direct gets.
type Query struct {
	Stream  string `json:"-"`
	From    uint64 `json:"seq"`                    // the least sequence
	Subject string `json:"next_by_subj,omitempty"` // may hold wildcards; empty: any
	Batch   int    `json:"batch"`                  // at most so many messages,
	Bytes   int    `json:"max_bytes"`              // and so many bytes unless the first alone is larger
}

// Stored is a message as it lies in a stream.
type Stored struct {
	Seq     uint64
	Subject string
	At      time.Time   // by the server's clock
	Header  nats.Header // none if they do not decode
	Data    []byte
}

// Get returns the one message of a stream for which query asks, as the stream's
// leader has it. An *APIError with code 10037 means that there is none. While there
// is no leader the error matches ErrNoResponders.
func (p *Pipe) Get(ctx context.Context, stream string, query map[string]any) (Stored, error) {
	body, err := json.Marshal(query)
	if err != nil {
		return Stored{}, err
	}
	m, err := p.Ask(ctx, "$JS.API.STREAM.MSG.GET."+stream, body)
	if err != nil {
		return Stored{}, err
	}
	var got struct {
		Error   *APIError `json:"error"`
		Message struct {
			Seq     uint64    `json:"seq"`
			Subject string    `json:"subject"`
			Headers []byte    `json:"hdrs"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
	}
	if err := json.Unmarshal(m.Data, &got); err != nil {
		return Stored{}, fmt.Errorf("%w: %w", ErrGarbled, err)
	}
	if got.Error != nil && got.Error.Status == 503 { // no leader, not enabled
		return Stored{}, fmt.Errorf("%w: %w", ErrNoResponders, got.Error)
	}
	if got.Error != nil {
		return Stored{}, got.Error
	}
	out := Stored{Seq: got.Message.Seq, Subject: got.Message.Subject, At: got.Message.Time, Data: got.Message.Data}
	if len(got.Message.Headers) > 0 {
		out.Header, _ = nats.DecodeHeadersMsg(got.Message.Headers)
	}
	return out, nil
}

// Page returns what take makes of the messages that q asks for, in rising
// order, and whether there are more behind them. Take runs on the pipe's
// goroutine. Any replica may answer, so what is missing at the end may just not
// be there yet.
func Page[T any](ctx context.Context, p *Pipe, q Query, take func(Stored) T) (page []T, more bool, err error) {
	q.From = max(q.From, 1)
	body, err := json.Marshal(q)
	if err != nil {
		return nil, false, err
	}
	type answer struct {
		page []T
		more bool
		err  error
	}
	answers := make(chan answer, 1)
	var got []T // owned by the pipe's goroutine until it is answered
	m := &nats.Msg{Subject: "$JS.API.DIRECT.GET." + q.Stream, Data: body}
	err = p.SendMany(m, func(m *nats.Msg, err error) bool {
		if err != nil {
			answers <- answer{err: err}
			return false
		}
		switch status := m.Header.Get("Status"); status {
		case "":
			seq, err := strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64)
			if err != nil || seq < q.From {
				answers <- answer{err: fmt.Errorf("the server sent sequence %q", m.Header.Get(jetstream.SequenceHeader))}
				return false
			}
			at, _ := time.Parse(time.RFC3339Nano, m.Header.Get(jetstream.TimeStampHeaer)) // the server's own
			got = append(got, take(Stored{seq, m.Header.Get(jetstream.SubjectHeader), at, m.Header, m.Data}))
			return true
		case "204": // the end of this answer
			left := m.Header.Get("Nats-Num-Pending")
			answers <- answer{page: got, more: left != "" && left != "0" && len(got) > 0}
		case "404": // nothing at or behind From
			answers <- answer{page: got}
		default:
			answers <- answer{err: fmt.Errorf("server says %s %s", status, m.Header.Get("Description"))}
		}
		return false
	})
	if err != nil {
		return nil, false, err
	}
	select {
	case a := <-answers:
		return a.page, a.more, a.err
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	}
}
