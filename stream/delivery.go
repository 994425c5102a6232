package stream

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman/command"
)

// Delivery is one arrival of a command at a worker, as it came from the wire.
// Nothing in it has been believed yet except the subject's shape.
type Delivery struct {
	Queue   string
	Kind    string
	Token   command.Token
	Header  nats.Header
	Payload []byte

	Seq      uint64 // in the command stream
	Attempts uint64 // deliveries of this message so far, by the server's count
	StoredAt time.Time
	// LeaseFrom is a moment at or before the server started the lease, on this
	// machine's monotonic clock: when the pull was sent that this delivery
	// answers. A delivery that lay in a buffer while the process was frozen
	// thus comes with a lease that has already run out.
	LeaseFrom time.Time

	subject string
	reply   string
	stream  *Stream
}

// Subject returns the subject that the command was published to.
func (d *Delivery) Subject() string { return d.subject }

// delivery reads a message that a pull brought. It returns nil for what is no
// JetStream delivery.
func (s *Stream) delivery(m *nats.Msg, from time.Time) *Delivery {
	d := &Delivery{Header: m.Header, Payload: m.Data, LeaseFrom: from, subject: m.Subject, reply: m.Reply, stream: s}
	if !d.parseReply() {
		return nil
	}
	d.Queue, d.Kind, d.Token = s.parse(m.Subject)
	return d
}

// parseReply reads the ack subject, of which there are two forms:
//
//	$JS.ACK.<stream>.<consumer>.<delivered>.<seq>.<consumer seq>.<time>.<pending>
//	$JS.ACK.<domain>.<account>.<stream>.<consumer>.<delivered>.<seq>.<consumer seq>.<time>.<pending>[.<random>]
func (d *Delivery) parseReply() bool {
	rest, ok := strings.CutPrefix(d.reply, "$JS.ACK.")
	if !ok {
		return false
	}
	skip := 2
	if strings.Count(rest, ".") > 6 {
		skip = 4
	}
	for range skip {
		if _, rest, ok = strings.Cut(rest, "."); !ok {
			return false
		}
	}
	var n [4]uint64 // delivered, sequence, consumer sequence, time
	for i := range n {
		var token string
		token, rest, _ = strings.Cut(rest, ".")
		v, err := strconv.ParseUint(token, 10, 64)
		if err != nil {
			return false
		}
		n[i] = v
	}
	d.Attempts, d.Seq, d.StoredAt = n[0], n[1], time.Unix(0, int64(n[3]))
	return true
}

var (
	ackBody      = []byte("+ACK")
	progressBody = []byte("+WPI")
)

// Ack takes the command out of the stream. It needs the proof that its fate is
// durable. The ack is not confirmed: if it gets lost, the command comes again
// and its record absorbs it.
//
// The server does not check who acks. Whoever lost the lease must not call
// this, nor Nak, nor Extend.
func (d *Delivery) Ack(proof command.Proof) error {
	if proof.Revision == 0 {
		return fmt.Errorf("stream: ack of sequence %d without a durable record", d.Seq)
	}
	return d.answer(ackBody)
}

// Nak gives the command back; it is delivered again after delay.
func (d *Delivery) Nak(delay time.Duration) error {
	if delay <= 0 {
		return d.answer([]byte("-NAK"))
	}
	body, err := json.Marshal(map[string]int64{"delay": int64(delay)})
	if err != nil {
		return fmt.Errorf("stream: nak of sequence %d: %w", d.Seq, err)
	}
	return d.answer(append([]byte("-NAK "), body...))
}

func (d *Delivery) answer(body []byte) error {
	// A client that buffers while it is disconnected would send this after it
	// has reconnected, when the delivery may long be somebody else's.
	if !d.stream.nc.IsConnected() {
		return fmt.Errorf("stream: answer delivery of sequence %d: %w", d.Seq, nats.ErrDisconnected)
	}
	if err := d.stream.nc.Publish(d.reply, body); err != nil {
		return fmt.Errorf("stream: answer delivery of sequence %d: %w", d.Seq, err)
	}
	return nil
}

// Extend starts the lease anew and calls done once the server has confirmed
// it. The server confirms to a superseded holder as well: see package lease
// for what a confirmation is worth. Done must not block.
func (d *Delivery) Extend(done func(error)) error {
	m := &nats.Msg{Subject: d.reply, Data: progressBody}
	if err := d.stream.pipe.Send(m, func(_ *nats.Msg, err error) { done(err) }); err != nil {
		return fmt.Errorf("stream: extend lease of sequence %d: %w", d.Seq, err)
	}
	return nil
}
