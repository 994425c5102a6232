package dedupe

import (
	"fmt"
	"strings"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
)

// Case is what a delivery turns out to be in the light of the command's record.
type Case int

// The cases. Each delivery falls into exactly one.
const (
	// Fresh: there is no record. Run it.
	Fresh Case = iota
	// Resume: the record is in the hands of an attempt that has ended, or was
	// sent back by a human. Take it over.
	Resume
	// Early: an attempt failed and the next one is not due yet. Give it back.
	Early
	// Settled: the outcome is recorded and speaks for this very sequence; only
	// the ack got lost. Finish what follows the record, and ack.
	Settled
	// Repeated: the outcome is recorded and this is another copy. File the
	// sequence as absorbed, and ack.
	Repeated
	// Rival: another copy, of another sequence, is under way. Absorb this one
	// if the other is still in the stream; take over if it is not.
	Rival
	// Conflict: the id stands for another kind or payload. Park this copy.
	Conflict
	// Unsure: an effect was announced and its outcome is unknown. Do not run it
	// before that is cleared up.
	Unsure
	// Corrupt: the record did not decode. Do not act on it.
	Corrupt
)

// earlyBy is how much sooner than recorded a retry may begin. Delays of the
// server and clocks of workers differ by some milliseconds.
const earlyBy = 100 * time.Millisecond

// Judge tells what the delivery of env with stream sequence seq is, given the
// entry of its record. It is pure and total. The entry may be old: only the
// write that follows decides.
func Judge(env command.Envelope, seq uint64, e kvstate.Entry, now time.Time) Case {
	r := e.Record
	switch {
	case e.Err != nil:
		return Corrupt
	case r == nil:
		return Fresh
	case r.Digest != env.Digest:
		return Conflict
	case r.State.Terminal() && r.Accounts(seq):
		return Settled
	case r.State.Terminal():
		return Repeated
	case r.State == kvstate.Requeued:
		return Resume
	case !r.Accounts(seq):
		return Rival
	case r.State == kvstate.Waiting && r.NextAt.Sub(now) > earlyBy:
		return Early
	case r.Open():
		return Unsure
	}
	return Resume
}

// Recognise establishes the identity of a command that came from the wire:
// its subject's token names the id, its bytes give the digest, and whatever
// the headers claim must agree. An error wraps command.ErrMalformed.
func Recognise(queue, kind string, token command.Token, header map[string][]string, payload []byte) (command.Envelope, error) {
	id, err := ParseToken(token)
	if err != nil {
		return command.Envelope{}, err
	}
	said := read(header)
	env := command.Envelope{
		Command: command.Command{
			ID: id, Kind: kind, Queue: queue,
			ContentType: said.contentType, Payload: payload,
		},
		Token: token,
	}
	if text := digest(kind, payload); string(text[:]) == said.digest {
		env.Digest = command.Digest(said.digest) // as nearly always: no other copy
	} else {
		env.Digest = command.Digest(text[:])
	}
	if err := env.Command.Validate(); err != nil {
		return env, fmt.Errorf("%w: %w", command.ErrMalformed, err)
	}
	if said.id != "" && strings.Trim(said.id, " ") != strings.Trim(id, " ") {
		// Headers lose spaces at their ends on the way, but no other character.
		return env, fmt.Errorf("%w: header %s says %q, the subject says %q", command.ErrMalformed, command.HeaderID, said.id, id)
	}
	if said.digest != "" && said.digest != string(env.Digest) {
		return env, fmt.Errorf("%w: header %s says %q, kind and payload give %q: one of them was altered", command.ErrMalformed, command.HeaderDigest, said.digest, env.Digest)
	}
	if limit := said.notAfter; limit != "" {
		at, err := time.Parse(time.RFC3339Nano, limit)
		if err != nil {
			return env, fmt.Errorf("%w: header %s: %w", command.ErrMalformed, command.HeaderNotAfter, err)
		}
		env.NotAfter = at
	}
	return env, nil
}

// said is what the headers of a command claim.
type said struct{ id, digest, contentType, notAfter string }

// read reads the headers whatever the case of their names, since people type
// them by hand. A name spelled as it should be comes before others.
func read(header map[string][]string) (s said) {
	for name, values := range header {
		if len(values) == 0 {
			continue
		}
		var want string
		var to *string
		switch len(name) { // which differ
		case len(command.HeaderID):
			want, to = command.HeaderID, &s.id
		case len(command.HeaderDigest):
			want, to = command.HeaderDigest, &s.digest
		case len(command.HeaderContentType):
			want, to = command.HeaderContentType, &s.contentType
		case len(command.HeaderNotAfter):
			want, to = command.HeaderNotAfter, &s.notAfter
		default:
			continue
		}
		if name == want || *to == "" && strings.EqualFold(name, want) {
			*to = values[0]
		}
	}
	return s
}
