package journal

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
)

// slots is how many snapshots of a run are kept.
const slots = 2

// snapshotTime bounds the writing of a snapshot, which the caller waits for.
const snapshotTime = 2 * time.Second

// snapshot is the folded state of a run after one of its decisions.
type snapshot struct {
	Version string    `msgpack:"version"` // of the fold that made it
	Run     string    `msgpack:"run"`
	Seq     uint64    `msgpack:"seq"`    // of the decision
	At      uint64    `msgpack:"at"`     // where that decision lies in the stream
	Commit  string    `msgpack:"commit"` // its commit id
	TakenAt time.Time `msgpack:"taken_at"`
	State   []byte    `msgpack:"state"`
}

// sealed is a snapshot as it is stored: its bytes and their checksum.
type sealed struct {
	Snapshot []byte `msgpack:"snapshot"`
	Sum      string `msgpack:"sum"`
}

func (s *snapshot) encode() ([]byte, error) {
	body, err := command.Marshal(s)
	if err != nil {
		return nil, err
	}
	return command.Marshal(sealed{Snapshot: body, Sum: sum(sumSnapshot, body)})
}

// parseSnapshot reads what encode made. Every bit counts, those around the
// checksummed bytes too: what would not be written like this is damaged.
func parseSnapshot(run string, raw []byte) (*snapshot, error) {
	var outer sealed
	if err := command.Unmarshal(raw, &outer); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if got := sum(sumSnapshot, outer.Snapshot); got != outer.Sum {
		return nil, fmt.Errorf("%w: its checksum is %s, it says %.40q", ErrDamaged, got, outer.Sum)
	}
	if again, err := command.Marshal(outer); err != nil || !bytes.Equal(again, raw) {
		return nil, fmt.Errorf("%w: it is not as it was written", ErrDamaged)
	}
	var s snapshot
	if err := command.Unmarshal(outer.Snapshot, &s); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if s.Run != run || s.Seq == 0 || s.At == 0 {
		return nil, fmt.Errorf("%w: it says that it belongs to run %q, decision %d", ErrDamaged, s.Run, s.Seq)
	}
	return &s, nil
}

// shelf is where the two snapshots of a run lie, as last seen.
type shelf struct {
	run  string
	keys [slots]command.Token
	// seq and revision of what lies there; seq is 0 for what is unusable.
	seq      [slots]uint64
	revision [slots]uint64
	newest   uint64 // after which decision the last one was taken
}

// shelved is a snapshot and where it lies.
type shelved struct {
	*snapshot
	slot int
}

func newShelf(run string, token command.Token) *shelf {
	s := &shelf{run: run}
	for i := range s.keys {
		s.keys[i] = kvstate.SnapshotKey(token, i)
	}
	return s
}

// snapshots returns the usable snapshots of a run, the newest first. What is
// damaged is reported and counted, and left out.
func (j *Journal) snapshots(ctx context.Context, s *shelf, version string) ([]shelved, error) {
	var found []shelved
	for i, key := range s.keys {
		e, err := j.records.Read(ctx, key)
		if err != nil {
			return nil, fmt.Errorf("journal: read a snapshot of run %q: %w", s.run, err)
		}
		s.seq[i], s.revision[i] = 0, e.Revision
		if len(e.Raw) == 0 {
			continue
		}
		snap, err := parseSnapshot(s.run, e.Raw)
		if err != nil {
			j.discard(s.run, key, err)
			continue
		}
		if snap.Version != version {
			continue // of another fold: it will be replaced
		}
		s.seq[i] = snap.Seq
		found = append(found, shelved{snap, i})
	}
	slices.SortFunc(found, func(a, b shelved) int { return cmp.Compare(b.Seq, a.Seq) })
	return found, nil
}

// discard reports a snapshot that cannot be used.
func (j *Journal) discard(run string, key command.Token, err error) {
	j.damagedSnapshots.Add(1)
	j.log.Warn("a snapshot cannot be used; an older one or the whole run is replayed instead", "run", run, "key", key, "error", err)
}

// store puts a snapshot where the older of the two lies. It is a convenience,
// so it never fails the caller: what goes wrong is reported and counted.
func (j *Journal) store(ctx context.Context, s *shelf, snap *snapshot) {
	slot := 0
	if s.seq[1] < s.seq[0] {
		slot = 1
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), snapshotTime)
	defer cancel()
	err := func() error {
		raw, err := snap.encode()
		if err != nil {
			return err
		}
		err = j.records.PutWait(ctx, s.keys[slot], raw, s.revision[slot])
		if err == nil || errors.Is(err, kvstate.ErrStale) {
			// Stored, or somebody else was faster. What lies there now is looked up.
			if _, again := j.snapshots(ctx, s, snap.Version); again != nil {
				return again
			}
			return nil
		}
		return err
	}()
	if err != nil {
		j.missedSnapshots.Add(1)
		j.log.Warn("a snapshot was not stored; replays take longer until the next one", "run", s.run, "decision", snap.Seq, "error", err)
	}
	// Whatever happened, the next one is due only after as many decisions again.
	s.newest = max(s.newest, snap.Seq)
}
