package journal

import (
	"context"
	"errors"
	"fmt"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pipeline"
)

// Replay calls fold with every event of a run, in order, and returns how many
// decisions the run has: what the next Commit expects. It is pure: nothing is
// submitted, written or acknowledged, however often it runs. An error of fold
// ends it and is returned.
//
// It shows every decision that was committed before it began: where the run
// ends is asked of the leader, and a replica that does not have it yet is
// asked again. Later ones are not shown.
//
// Errors: ErrGap if a decision is missing or there twice, ErrDamaged if stored
// bytes are not what was written. Memory is that of a page, about 5 MB at most.
func (j *Journal) Replay(ctx context.Context, run string, fold func(Recorded) error) (uint64, error) {
	return j.History(ctx, run, func(e *Entry) error { return e.recorded(fold) })
}

// History is Replay that shows whole decisions, their commands included.
// Nothing happens to the commands. The entry may be kept.
func (j *Journal) History(ctx context.Context, run string, visit func(*Entry) error) (uint64, error) {
	token, err := tokenOf(run)
	if err != nil {
		return 0, fmt.Errorf("journal: replay: %w", err)
	}
	end, err := j.end(ctx, token)
	if err != nil {
		return 0, err
	}
	err = j.replay(ctx, token, head{}, end, visit)
	return end.seq, err
}

// end asks the leader where a run ends, again and again while there is no leader.
func (j *Journal) end(ctx context.Context, token command.Token) (head, error) {
	ctx, cancel := pipeline.Within(ctx, j.confirm)
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		last, err := j.last(ctx, token)
		switch {
		case err == nil && last == nil:
			return head{}, nil
		case err == nil:
			return head{seq: last.Seq, at: last.StreamSeq}, nil
		case final(err) || pipeline.Sleep(ctx, pause) != nil:
			return head{}, err
		}
	}
}

// replay visits the decisions after one head up to another. Each must follow the one before.
func (j *Journal) replay(ctx context.Context, token command.Token, after, end head, visit func(*Entry) error) error {
	if end.at <= after.at {
		return nil
	}
	walked := after
	err := j.walkPatiently(ctx, j.subject(token), after.at+1, end.at, func(s stored) error {
		e, err := s.entry()
		if err != nil {
			return err
		}
		if e.Seq != walked.seq+1 {
			return fmt.Errorf("journal: replay run %q: %w: decision %d follows decision %d, at sequence %d of %s; see tallyman audit --journal", e.Run, ErrGap, e.Seq, walked.seq, s.seq, j.stream)
		}
		walked = head{seq: e.Seq, at: e.StreamSeq}
		return visit(e)
	})
	if err != nil {
		return err
	}
	if walked != end {
		return fmt.Errorf("journal: replay run %s: %w: it ended at decision %d, and there were %d; see tallyman audit --journal", token, ErrGap, walked.seq, end.seq)
	}
	return nil
}

// walkPatiently is walk whose patience without progress is that of the journal,
// however long the whole takes.
func (j *Journal) walkPatiently(ctx context.Context, subject string, from, upTo uint64, visit func(stored) error) error {
	for {
		bounded, cancel := context.WithTimeout(ctx, j.confirm)
		before := from
		var visiting error
		err := j.walk(bounded, subject, from, upTo, func(s stored) error {
			if err := ctx.Err(); err != nil {
				visiting = context.Cause(ctx)
				return visiting
			}
			if visiting = visit(s); visiting != nil {
				return visiting
			}
			from = s.seq + 1
			if bounded.Err() != nil && from <= upTo {
				return errTurn
			}
			return nil
		})
		cancel()
		switch {
		case err == nil || visiting != nil:
			return err
		case ctx.Err() != nil:
			return fmt.Errorf("journal: read %s from sequence %d on: %w", subject, from, context.Cause(ctx))
		case errors.Is(err, errTurn) || from > before:
			continue // it got on
		}
		return err
	}
}

// errTurn ends one walk so that the next one gets a new measure of patience.
var errTurn = errors.New("turn")
