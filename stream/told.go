package stream

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// Workers tell each other which commands they have acked, so that who sweeps
// need not read the records of all. It is plain NATS, not stored: who misses
// it reads the records. The subject is <pool>.settled.<queue>, and the message
// binds the sequences to one making of the stream.

// Run is a run of sequences: From, and those that follow it.
type Run struct {
	From  uint64
	Count uint64
}

// Runs makes runs of sequences, which it sorts in place.
func Runs(seqs []uint64) []Run {
	slices.Sort(seqs)
	var runs []Run
	for _, seq := range seqs {
		if n := len(runs); n > 0 && seq < runs[n-1].From+runs[n-1].Count {
			continue // twice
		} else if n > 0 && seq == runs[n-1].From+runs[n-1].Count && runs[n-1].Count < maxRun {
			runs[n-1].Count++
		} else {
			runs = append(runs, Run{seq, 1})
		}
	}
	return runs
}

const (
	toldVersion = 1
	// maxTold is how many runs one message holds, and maxRun how many sequences
	// all of them together, so that nobody is kept busy by what others say.
	maxTold = 4 << 10
	maxRun  = 1 << 20
)

// encodeRuns and decodeRuns: a byte for the version, then numbers of variable
// length: the stream's making in nanoseconds, and for each run the gap before it and its length.
func encodeRuns(created time.Time, runs []Run) []byte {
	b := append(make([]byte, 0, 16+4*len(runs)), toldVersion)
	b = binary.AppendVarint(b, created.UnixNano())
	end := uint64(0)
	for _, r := range runs {
		b = binary.AppendUvarint(b, r.From-end)
		b = binary.AppendUvarint(b, r.Count)
		end = r.From + r.Count
	}
	return b
}

var errGarbled = errors.New("garbled")

func decodeRuns(b []byte) (created time.Time, runs []Run, err error) {
	if len(b) == 0 || b[0] != toldVersion {
		return time.Time{}, nil, errGarbled
	}
	at, n := binary.Varint(b[1:])
	if n <= 0 {
		return time.Time{}, nil, errGarbled
	}
	b = b[1+n:]
	left := uint64(maxRun)
	for end := uint64(0); len(b) > 0; {
		gap, n := binary.Uvarint(b)
		if n <= 0 {
			return time.Time{}, nil, errGarbled
		}
		count, m := binary.Uvarint(b[n:])
		if m <= 0 || count == 0 || count > left || end+gap < end || end+gap+count < end+gap || len(runs) == maxTold {
			return time.Time{}, nil, errGarbled
		}
		runs = append(runs, Run{end + gap, count})
		left -= count
		end += gap + count
		b = b[n+m:]
	}
	return time.Unix(0, at), runs, nil
}

// Tell tells other workers which sequences of a queue are acked, on proof. Who
// does not hear it has to look itself. Created is that of the stream's State.
func (s *Stream) Tell(queue string, created time.Time, runs []Run) error {
	for part := range parts(runs) {
		m := &nats.Msg{Subject: s.told(queue), Data: encodeRuns(created, part)}
		if err := s.nc.PublishMsg(m); err != nil {
			return fmt.Errorf("stream: tell which commands of queue %q are acked: %w", queue, err)
		}
	}
	return nil
}

// parts splits runs into what one message may hold.
func parts(runs []Run) iter.Seq[[]Run] {
	return func(yield func([]Run) bool) {
		begin, sum := 0, uint64(0)
		for i, r := range runs {
			if i-begin == maxTold || i > begin && sum+r.Count > maxRun {
				if !yield(runs[begin:i]) {
					return
				}
				begin, sum = i, 0
			}
			sum += r.Count
		}
		if begin < len(runs) {
			yield(runs[begin:])
		}
	}
}

// Hear calls heard with what workers of this pool tell, this one included,
// until stop is called. Heard runs on a goroutine of the connection.
func (s *Stream) Hear(heard func(queue string, created time.Time, runs []Run)) (stop func(), err error) {
	sub, err := s.nc.Subscribe(s.told("*"), func(m *nats.Msg) {
		if created, runs, err := decodeRuns(m.Data); err == nil {
			heard(strings.TrimPrefix(m.Subject, s.told("")), created, runs)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("stream: hear of acked commands: %w", err)
	}
	return func() { _ = sub.Unsubscribe() }, nil // fails only when the connection is gone, and the subscription with it
}

// told is where the acks of a queue are told of.
func (s *Stream) told(queue string) string {
	return strings.TrimSuffix(s.prefix, "commands.") + "settled." + queue
}
