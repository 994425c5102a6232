package journal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pipeline"
)

const (
	// pageSize and pageBytes bound what one request reads, and so the memory
	// of a replay: a page may exceed pageBytes by one message.
	pageSize  = 256
	pageBytes = 4 << 20
)

// stored is a message as it lies in the stream; nothing in it is believed yet.
type stored struct {
	seq    uint64
	token  command.Token
	header nats.Header
	body   []byte
	at     time.Time // by the server's clock
}

func (s stored) entry() (*Entry, error) { return decode(s.token, s.seq, s.header, s.body) }

func (j *Journal) subject(token command.Token) string { return j.prefix + string(token) }

func (j *Journal) tokenIn(subject string) command.Token {
	return command.Token(strings.TrimPrefix(subject, j.prefix))
}

// get asks the stream's leader for one message. errNoEntry means that there is none.
func (j *Journal) get(ctx context.Context, query map[string]any) (stored, error) {
	m, err := j.pipe.Get(ctx, j.stream, query)
	if err != nil {
		return stored{}, classify(err)
	}
	return j.stored(m), nil
}

// stored takes a message as it is read. Without headers it has no checksum, which is damage.
func (j *Journal) stored(m pipeline.Stored) stored {
	return stored{seq: m.Seq, token: j.tokenIn(m.Subject), header: m.Header, body: m.Data, at: m.At}
}

// last returns the last decision of a run as the stream's leader has it, nil if there is none.
func (j *Journal) last(ctx context.Context, token command.Token) (*Entry, error) {
	s, err := j.get(ctx, map[string]any{"last_by_subj": j.subject(token)})
	switch {
	case errors.Is(err, errNoEntry):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("journal: read the end of run %s: %w", token, err)
	}
	return s.entry()
}

// page reads up to pageSize messages of a subject, from a sequence on. Any
// replica may answer, so what is missing at the end may just not be there yet.
func (j *Journal) page(ctx context.Context, subject string, from uint64) ([]stored, error) {
	q := pipeline.Query{Stream: j.stream, From: from, Subject: subject, Batch: pageSize, Bytes: pageBytes}
	read, _, err := pipeline.Page(ctx, j.pipe, q, j.stored)
	return read, err
}

// errStop ends a walk early, without being an error.
var errStop = errors.New("stop")

// walk visits the messages of a subject from one sequence to another, both
// included, and returns once it has met the last one: a replica that lags is
// asked again, until ctx ends.
func (j *Journal) walk(ctx context.Context, subject string, from, upTo uint64, visit func(stored) error) error {
	pause := firstPause
	for from <= upTo {
		page, err := j.page(ctx, subject, from)
		if err != nil && (ctx.Err() != nil || final(err)) {
			return fmt.Errorf("journal: read %s: %w", subject, err)
		}
		for _, s := range page {
			if s.seq > upTo {
				return nil
			}
			if err := visit(s); err != nil {
				if errors.Is(err, errStop) {
					return nil
				}
				return err
			}
			from = s.seq + 1
		}
		if len(page) > 0 {
			pause = firstPause
			continue
		}
		if err == nil {
			err = fmt.Errorf("%w: the replica that answered does not have sequence %d yet, or it was deleted", ErrUnavailable, upTo)
		}
		if pipeline.Sleep(ctx, pause) != nil {
			return fmt.Errorf("journal: read %s from sequence %d on: %w", subject, from, err)
		}
		pause = min(2*pause, lastPause)
	}
	return nil
}

// The first and the longest pause between two tries.
const (
	firstPause = 20 * time.Millisecond
	lastPause  = time.Second
)
