package desk

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pipeline"
	"github.com/tallyman-go/tallyman/kvstate"
)

// Forever is how long a queue is paused that is to stand until it is resumed.
const Forever = 100 * 365 * 24 * time.Hour

// Pause says who paused a queue, and who resumed it. It lies in the bucket as JSON.
type Pause struct {
	By    string    `json:"by"`
	Why   string    `json:"why,omitempty"`
	At    time.Time `json:"at"`
	Until time.Time `json:"until"`

	ResumedBy  string     `json:"resumed_by,omitempty"`
	ResumedWhy string     `json:"resumed_why,omitempty"`
	ResumedAt  *time.Time `json:"resumed_at,omitempty"`
}

// Pause stops the deliveries of a queue for a time; 0 means Forever. Handlers
// that run go on and keep their leases; see stream.Stream.Pause. Pausing again
// sets the time anew. In a sharded pool the queue stands in every shard; where that
// fails in between, repeating it completes it. It returns until when the queue stands.
func (d *Desk) Pause(ctx context.Context, act Act, queue string, length time.Duration) (time.Time, error) {
	if err := act.check(); err != nil {
		return time.Time{}, err
	}
	if err := command.ValidateName("queue", queue); err != nil {
		return time.Time{}, fmt.Errorf("desk: pause: %w", err)
	}
	if length < 0 {
		return time.Time{}, fmt.Errorf("desk: pause queue %q: %w: it is to stand for %v", queue, ErrAct, length)
	}
	if length == 0 {
		length = Forever
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	now := time.Now().UTC()
	until := now.Add(length).Truncate(time.Millisecond)
	if err := d.pauseAll(ctx, queue, until); err != nil {
		return time.Time{}, err
	}
	if err := d.note(ctx, queue, Pause{By: act.By, Why: act.Why, At: now, Until: until}); err != nil {
		return until, fmt.Errorf("desk: queue %q is paused, but who did it is not on record: %w; repeat it", queue, err)
	}
	return until, nil
}

// Resume ends the pause of a queue. If it is not paused, nothing changes.
func (d *Desk) Resume(ctx context.Context, act Act, queue string) error {
	if err := act.check(); err != nil {
		return err
	}
	if err := command.ValidateName("queue", queue); err != nil {
		return fmt.Errorf("desk: resume: %w", err)
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	if err := d.resumeAll(ctx, queue); err != nil {
		return err
	}
	p, err := d.LastPause(ctx, queue)
	if err == nil && p.By != "" && p.ResumedBy == "" {
		now := time.Now().UTC()
		p.ResumedBy, p.ResumedWhy, p.ResumedAt = act.By, act.Why, &now
		err = d.note(ctx, queue, p)
	}
	if err != nil {
		return fmt.Errorf("desk: queue %q is resumed, but who did it is not on record: %w; repeat it", queue, err)
	}
	return nil
}

// LastPause returns what is on record about the last pause of a queue; the zero
// value if there was none. It is a note for people: whether the queue is paused
// the server knows, see stream.Queue.
func (d *Desk) LastPause(ctx context.Context, queue string) (Pause, error) {
	e, err := d.records.Read(ctx, kvstate.PauseKey(queue))
	if err != nil || e.Raw == nil {
		return Pause{}, err
	}
	var p Pause
	if err := json.Unmarshal(e.Raw, &p); err != nil {
		return Pause{}, fmt.Errorf("desk: the entry %s is damaged: %w", kvstate.PauseKey(queue), err)
	}
	return p, nil
}

func (d *Desk) note(ctx context.Context, queue string, p Pause) error {
	body, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return d.put(ctx, kvstate.PauseKey(queue), body)
}

// put stores an entry that is no record, and stays.
func (d *Desk) put(ctx context.Context, key command.Token, value []byte) error {
	_, err := pipeline.Await(ctx, func(done func(uint64, error)) error { return d.records.Put(key, value, false, done) })
	return err
}
