package pipeline

import (
	"bytes"
	"sync"

	"github.com/nats-io/nats.go"
)

// Message is an outgoing message that is used again. Sending encodes it at once,
// so its header map, and the values in it, can serve the next one. One that sets
// the same headers in the same order finds them in the map.
type Message struct {
	msg    nats.Msg
	names  [usualHeaders]string    // of the headers in the map, as they were set
	values [usualHeaders][1]string // theirs
	n      int                     // headers set in this use
	kept   int                     // headers in the map, of this use and of the last one
	odd    bool                    // the map has lost one of them
	room   []byte
}

// maxRoom is the largest room that is kept for the next message.
const maxRoom = 4 << 10

// usualHeaders is how many headers a message has without allocating for more.
const usualHeaders = 9

var messages = sync.Pool{New: func() any {
	return &Message{msg: nats.Msg{Header: make(nats.Header, usualHeaders)}}
}}

// NewMessage returns a message without headers. Deliver it, or recycle it.
func NewMessage(subject string, data []byte) *Message {
	m := messages.Get().(*Message)
	m.msg.Subject, m.msg.Data = subject, data
	return m
}

// Room returns memory for the data of m, of length 0, that lasts as long as m.
func (m *Message) Room() []byte { return m.room[:0] }

// Fill gives m its data, made by appending to its Room.
func (m *Message) Fill(data []byte) {
	m.msg.Data = data
	if cap(data) <= maxRoom {
		m.room = data
	}
}

// Set sets a header that is not set yet.
func (m *Message) Set(key, value string) {
	i := m.n
	if i == len(m.values) {
		m.msg.Header[key] = []string{value}
		return
	}
	if i == m.kept || m.names[i] != key {
		m.forget()
		m.msg.Header[key] = m.values[i][:]
		m.names[i], m.kept = key, i+1
	}
	m.values[i][0] = value
	m.n++
}

// forget takes the headers of the last use away that this one has not set.
func (m *Message) forget() {
	for _, name := range m.names[m.n:m.kept] {
		delete(m.msg.Header, name)
	}
	m.kept = m.n
}

// Unset takes a header away.
func (m *Message) Unset(key string) {
	m.forget()
	delete(m.msg.Header, key)
	m.odd = true
}

// Subject returns where m goes.
func (m *Message) Subject() string { return m.msg.Subject }

// Size returns how many bytes m has without its headers.
func (m *Message) Size() int { return len(m.msg.Data) }

// Headers returns how many headers are set.
func (m *Message) Headers() int {
	m.forget()
	return len(m.msg.Header)
}

// Keep makes m independent of the data that it was made with.
func (m *Message) Keep() { m.msg.Data = bytes.Clone(m.msg.Data) }

// Recycle gives m back. It is not to be used any more.
func (m *Message) Recycle() {
	m.recycle()
	messages.Put(m)
}

// recycle makes m ready for another use.
func (m *Message) recycle() {
	if m.odd || len(m.msg.Header) != m.kept { // more than have a place, or those of a batch
		clear(m.msg.Header)
		m.kept, m.odd = 0, false
	}
	m.n = 0
	m.msg.Subject, m.msg.Reply, m.msg.Data = "", "", nil
}

// Deliver sends m by itself, or by g if that is not nil, and reads the answer.
// It takes m: on success and failure alike it is not the caller's any more.
// Otherwise it is as Publish and Add are.
func (p *Pipe) Deliver(m *Message, g *Group, done func(PubAck, error)) error {
	m.forget()
	if g == nil {
		err := p.Publish(&m.msg, done)
		m.Recycle()
		return err
	}
	err := g.Add(&m.msg, func(ack PubAck, err error) {
		m.Recycle()
		done(ack, err)
	})
	if err != nil {
		m.Recycle()
	}
	return err
}
