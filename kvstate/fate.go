package kvstate

import (
	"context"
	"slices"

	"github.com/tallyman-go/tallyman/command"
)

// Lying is a command that lies in the stream.
type Lying struct {
	Seq   uint64
	Token command.Token
}

// Fate is what the bucket says of a command that lies in the stream.
type Fate struct {
	// Accounted says that something speaks for this very sequence: a record
	// whose command has had its outcome, was parked or was sent back since, or
	// an entry of its own. Once it is acked, the stream need not hold it.
	Accounted bool
	// Over says that nobody can want this copy any more, acked or not. It is not
	// said of what a person may send back, nor of a receipt with follow-ups, whose
	// command stays until they are born.
	Over bool
	// Receipt is there if it has follow-ups. That they are born is not on record:
	// only the ack tells.
	Receipt *Record
}

// fateBatch bounds the records that are read at once, and with that the memory.
const fateBatch = 256

// Fates returns the fate of each command, in the same order. It takes one
// request for 256 of them, and another one where a record does not speak for
// the sequence.
//
// On a replicated bucket a follower that lags may answer, which then does not
// know of the newest outcomes yet. A record that it shows as parked may have been sent back.
func (s *Store) Fates(ctx context.Context, commands []Lying) ([]Fate, error) {
	fates := make([]Fate, 0, len(commands))
	for batch := range slices.Chunk(commands, fateBatch) {
		some, err := s.fates(ctx, batch)
		if err != nil {
			return nil, err
		}
		fates = append(fates, some...)
	}
	return fates, nil
}

func (s *Store) fates(ctx context.Context, commands []Lying) ([]Fate, error) {
	keys := make([]command.Token, len(commands))
	for i, c := range commands {
		keys[i] = c.Token
	}
	entries, err := s.ReadManyWait(ctx, keys)
	if err != nil {
		return nil, err
	}
	fates := make([]Fate, len(commands))
	var unspoken []int
	var beside []command.Token
	for i, c := range commands {
		r := entries[i].Record
		if r == nil || !r.Accounts(c.Seq) {
			unspoken = append(unspoken, i)
			beside = append(beside, asideKeys(c.Seq)...)
			continue
		}
		fates[i] = fateOf(r)
	}
	if len(beside) == 0 {
		return fates, nil
	}
	aside, err := s.ReadManyWait(ctx, beside) // at most 3*fateBatch
	if err != nil {
		return nil, err
	}
	for k, i := range unspoken {
		fates[i] = asideFate(entries[i].Record, aside[3*k:3*k+3])
	}
	return fates, nil
}

// FateOf is Fates for one command, as the leader has it, which never lags.
func (s *Store) FateOf(ctx context.Context, c Lying) (Fate, error) {
	e, err := s.Read(ctx, c.Token)
	if err != nil {
		return Fate{}, err
	}
	if r := e.Record; r != nil && r.Accounts(c.Seq) {
		return fateOf(r), nil
	}
	var aside []Entry
	for _, key := range asideKeys(c.Seq) {
		filed, err := s.Read(ctx, key)
		if err != nil {
			return Fate{}, err
		}
		aside = append(aside, filed)
	}
	return asideFate(e.Record, aside), nil
}

// asideKeys are where a sequence is accounted for if not by the record of its id.
func asideKeys(seq uint64) []command.Token {
	return []command.Token{AbsorbedKey(seq), MalformedKey(seq), ConflictKey(seq)}
}

// asideFate is the fate of a sequence for which r, if there is one, does not
// speak. Filed is what lies under asideKeys.
func asideFate(r *Record, filed []Entry) Fate {
	absorbed := filed[0].Raw != nil
	parked := filed[1].Raw != nil || filed[2].Raw != nil
	// A copy that was absorbed while its command was parked may carry it after
	// all, once that was sent back.
	return Fate{Accounted: parked || absorbed, Over: parked || absorbed && r != nil && r.State.Final()}
}

// fateOf is the fate of a sequence that r accounts for.
func fateOf(r *Record) Fate {
	// What was sent back gets a new sequence; the record learns of it with the next claim.
	f := Fate{Accounted: r.State.Terminal() || r.State == Requeued}
	f.Over = r.State.Final() && len(r.FollowUps) == 0
	if r.State == Completed && len(r.FollowUps) > 0 {
		f.Receipt = r
	}
	return f
}
