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
	env := command.Envelope{
		Command: command.Command{
			ID: id, Kind: kind, Queue: queue,
			ContentType: first(header, command.HeaderContentType), Payload: payload,
		},
		Token:  token,
		Digest: Digest(kind, payload),
	}
	if err := env.Command.Validate(); err != nil {
		return env, fmt.Errorf("%w: %w", command.ErrMalformed, err)
	}
	if claimed := first(header, command.HeaderID); claimed != "" && strings.Trim(claimed, " ") != strings.Trim(id, " ") {
		// Headers lose spaces at their ends on the way, but no other character.
		return env, fmt.Errorf("%w: header %s says %q, the subject says %q", command.ErrMalformed, command.HeaderID, claimed, id)
	}
	if claimed := first(header, command.HeaderDigest); claimed != "" && claimed != string(env.Digest) {
		return env, fmt.Errorf("%w: header %s says %q, kind and payload give %q: one of them was altered", command.ErrMalformed, command.HeaderDigest, claimed, env.Digest)
	}
	if limit := first(header, command.HeaderNotAfter); limit != "" {
		at, err := time.Parse(time.RFC3339Nano, limit)
		if err != nil {
			return env, fmt.Errorf("%w: header %s: %w", command.ErrMalformed, command.HeaderNotAfter, err)
		}
		env.NotAfter = at
	}
	return env, nil
}

// first returns a header's first value whatever the case of its name, since
// people type headers by hand.
func first(header map[string][]string, name string) string {
	if v := header[name]; len(v) > 0 {
		return v[0]
	}
	for k, v := range header {
		if len(v) > 0 && len(k) == len(name) && strings.EqualFold(k, name) {
			return v[0]
		}
	}
	return ""
}
