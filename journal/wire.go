package journal

import (
	"bytes"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
)

// wireVersion is the newest version of an entry that this code writes and reads.
const wireVersion = 1

// wire is an entry as it is stored: one MessagePack map. The header
// Tallyman-Sum holds the digest of these bytes.
type wire struct {
	Version  int           `msgpack:"v"`
	Run      string        `msgpack:"run"`
	Seq      uint64        `msgpack:"seq"`
	ID       string        `msgpack:"id"`
	At       time.Time     `msgpack:"at"`
	Events   []wireEvent   `msgpack:"events,omitempty"`
	Commands []wireCommand `msgpack:"commands,omitempty"`
}

type wireEvent struct {
	Kind string `msgpack:"kind"`
	Data []byte `msgpack:"data,omitempty"`
}

type wireCommand struct {
	ID          string     `msgpack:"id"`
	Kind        string     `msgpack:"kind"`
	Queue       string     `msgpack:"queue"`
	ContentType string     `msgpack:"content_type,omitempty"`
	Payload     []byte     `msgpack:"payload,omitempty"`
	NotAfter    *time.Time `msgpack:"not_after,omitempty"`
}

func (e *Entry) wire() wire {
	w := wire{Version: wireVersion, Run: e.Run, Seq: e.Seq, ID: e.ID, At: e.At}
	for _, ev := range e.Events {
		w.Events = append(w.Events, wireEvent(ev))
	}
	for _, c := range e.Commands {
		wc := wireCommand{ID: c.ID, Kind: c.Kind, Queue: c.Queue, ContentType: c.ContentType, Payload: c.Payload}
		if !c.NotAfter.IsZero() {
			at := c.NotAfter.UTC()
			wc.NotAfter = &at
		}
		w.Commands = append(w.Commands, wc)
	}
	return w
}

// sameContent reports whether two entries say the same, whenever they were made.
func sameContent(a, b *Entry) bool {
	wa, wb := a.wire(), b.wire()
	wa.At, wb.At = time.Time{}, time.Time{}
	ba, err := command.Marshal(wa)
	if err != nil {
		return false
	}
	bb, err := command.Marshal(wb)
	return err == nil && bytes.Equal(ba, bb)
}

// sum is the checksum of stored bytes; what names what they are.
func sum(what string, body []byte) string { return string(dedupe.Digest(what, body)) }

const (
	sumEntry    = "entry"
	sumSnapshot = "snapshot"
)

// message makes what is published of an entry.
func (e *Entry) message(subject string) (*nats.Msg, error) {
	body, err := command.Marshal(e.wire())
	if err != nil {
		return nil, fmt.Errorf("journal: encode decision %d of run %q: %w", e.Seq, e.Run, err)
	}
	return &nats.Msg{Subject: subject, Data: body, Header: nats.Header{
		headerRun:    {e.Run},
		headerSeq:    {strconv.FormatUint(e.Seq, 10)},
		headerCommit: {e.ID},
		headerSum:    {sum(sumEntry, body)},
	}}, nil
}

// decode reads a stored message and believes nothing of it. Token is that of
// the subject; a message that was stored under another run's subject is damage.
func decode(token command.Token, streamSeq uint64, header nats.Header, body []byte) (*Entry, error) {
	damaged := func(format string, args ...any) error {
		return fmt.Errorf("journal: the message with sequence %d, of run %s, is %w: %w", streamSeq, token, ErrDamaged, fmt.Errorf(format, args...))
	}
	if got, want := sum(sumEntry, body), header.Get(headerSum); got != want {
		return nil, damaged("its checksum is %q, its header says %q", got, want)
	}
	var w wire
	if err := command.Unmarshal(body, &w); err != nil {
		return nil, damaged("%w", err)
	}
	if w.Version != wireVersion {
		return nil, damaged("version %d of the format; this program reads %d", w.Version, wireVersion)
	}
	if own, err := tokenOf(w.Run); err != nil || own != token {
		return nil, damaged("it says that it belongs to run %q", w.Run)
	}
	if w.Seq == 0 || w.ID == "" {
		return nil, damaged("it has no number or no commit id")
	}
	e := &Entry{Run: w.Run, ID: w.ID, Seq: w.Seq, StreamSeq: streamSeq, At: w.At.UTC()}
	for _, ev := range w.Events {
		e.Events = append(e.Events, Event(ev))
	}
	for _, c := range w.Commands {
		cmd := command.Command{ID: c.ID, Kind: c.Kind, Queue: c.Queue, ContentType: c.ContentType, Payload: c.Payload}
		if c.NotAfter != nil {
			cmd.NotAfter = c.NotAfter.UTC()
		}
		e.Commands = append(e.Commands, cmd)
	}
	return e, nil
}
