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
	Behind   uint64 // how many commands of the queue waited behind this one
	StoredAt time.Time
	// LeaseFrom is a moment at or before the server started the lease, on this
	// machine's monotonic clock: when the pull was sent that this delivery
	// answers. A delivery that lay in a buffer while the process was frozen
	// thus comes with a lease that has already run out.
	LeaseFrom time.Time

	subject string
	reply   string
	line    Line
}

// Line carries the answers to deliveries. The command stream is one; another
// may stand in for it where there is no server. It must be safe for concurrent use.
type Line interface {
	// Say sends an answer that is not confirmed. It must not keep it for later:
	// an error means that it was not sent and never will be.
	Say(reply string, body []byte) error
	// Ask sends an answer and calls done once the server has confirmed it, or
	// with the reason why it is not known whether it has. Done must not block
	// and is not called if Ask returns an error.
	Ask(reply string, body []byte, done func(error)) error
}

// Subject returns the subject that the command was published to.
func (d *Delivery) Subject() string { return d.subject }

// NewDelivery reads a message that a pull, sent at from, has brought from the
// command stream of a pool. It returns nil for what is no JetStream delivery.
func NewDelivery(pool string, m *nats.Msg, from time.Time, line Line) *Delivery {
	return newDelivery(subjectPrefix(pool), m, from, line)
}

func newDelivery(prefix string, m *nats.Msg, from time.Time, line Line) *Delivery {
	d := &Delivery{Header: m.Header, Payload: m.Data, LeaseFrom: from, subject: m.Subject, reply: m.Reply, line: line}
	if !d.parseReply() {
		return nil
	}
	d.Queue, d.Kind, d.Token = parse(prefix, m.Subject)
	return d
}

func (s *Stream) delivery(m *nats.Msg, from time.Time) *Delivery {
	return newDelivery(s.prefix, m, from, (*wire)(s))
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
	behind, _, _ := strings.Cut(rest, ".")
	d.Behind, _ = strconv.ParseUint(behind, 10, 64) // only a hint
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
	if err := d.line.Say(d.reply, body); err != nil {
		return fmt.Errorf("stream: answer delivery of sequence %d: %w", d.Seq, err)
	}
	return nil
}

// Extend starts the lease anew and calls done once the server has confirmed
// it. The server confirms to a superseded holder as well: see package lease
// for what a confirmation is worth. Done must not block.
func (d *Delivery) Extend(done func(error)) error {
	if err := d.line.Ask(d.reply, progressBody, done); err != nil {
		return fmt.Errorf("stream: extend lease of sequence %d: %w", d.Seq, err)
	}
	return nil
}

// wire is the stream as the Line of its deliveries.
type wire Stream

func (w *wire) Say(reply string, body []byte) error {
	// A client that buffers while it is disconnected would send this after it
	// has reconnected, when the delivery may long be somebody else's.
	if !w.nc.IsConnected() {
		return nats.ErrDisconnected
	}
	return w.nc.Publish(reply, body)
}

func (w *wire) Ask(reply string, body []byte, done func(error)) error {
	return w.pipe.Send(&nats.Msg{Subject: reply, Data: body}, func(_ *nats.Msg, err error) { done(err) })
}
