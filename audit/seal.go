package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/tallyman-go/tallyman/kvstate"
)

// sealVersion is the newest layout of the stored seal.
const sealVersion = 1

// storedSeal is what the pool's bucket holds under kvstate.KeyAudit: JSON that a
// person can read, and write with sealed_through alone.
type storedSeal struct {
	Version       int       `json:"version,omitempty"`
	SealedThrough *uint64   `json:"sealed_through"`
	ClosedThrough *uint64   `json:"closed_through,omitempty"` // as it was called once; read, not written
	SealedAt      time.Time `json:"sealed_at,omitzero"`
	// StreamCreated tells a stream that was made anew, which counts from 1, or
	// was restored from a backup, which counts from there.
	StreamCreated time.Time `json:"stream_created,omitzero"`
}

// seal is up to where the books are sealed.
type seal struct {
	through  uint64
	created  time.Time // of the stream whose sequences these are; zero if not known
	revision uint64
}

func readSeal(ctx context.Context, records *kvstate.Store) (seal, error) {
	e, err := records.Read(ctx, kvstate.KeyAudit)
	if err != nil {
		return seal{}, fmt.Errorf("audit: read up to where the books are sealed: %w", err)
	}
	s := seal{revision: e.Revision}
	if e.Raw == nil { // never sealed, or deleted to begin anew
		return s, nil
	}
	damaged := func(why any) error {
		return fmt.Errorf("audit: the entry %s is damaged: %v; put it right, or delete it to audit from the first sequence on: nats kv del %s %[1]s",
			kvstate.KeyAudit, why, records.Bucket())
	}
	var in storedSeal
	if err := json.Unmarshal(e.Raw, &in); err != nil {
		return seal{}, damaged(err)
	}
	switch {
	case in.Version > sealVersion:
		return seal{}, fmt.Errorf("audit: the entry %s has version %d, this program knows %d: use the same version everywhere", kvstate.KeyAudit, in.Version, sealVersion)
	case in.SealedThrough == nil && in.ClosedThrough != nil:
		in.SealedThrough = in.ClosedThrough
	case in.SealedThrough == nil:
		return seal{}, damaged("sealed_through is missing")
	}
	s.through, s.created = *in.SealedThrough, in.StreamCreated
	return s, nil
}

// another reports whether the books were sealed for another stream than the one
// that was made at that time.
func (s seal) another(created time.Time) bool {
	return !s.created.IsZero() && !s.created.Equal(created)
}

// advance seals the books through seq, unless they are sealed further already,
// and returns up to where they are then. It is one write, over what was read: of
// several at once the furthest stands.
func (s seal) advance(ctx context.Context, records *kvstate.Store, seq uint64, created time.Time) (uint64, error) {
	for seq > s.through {
		body, err := json.Marshal(storedSeal{Version: sealVersion, SealedThrough: &seq, SealedAt: time.Now().UTC(), StreamCreated: created.UTC()})
		if err != nil {
			return s.through, fmt.Errorf("audit: seal the books: %w", err)
		}
		err = records.PutWait(ctx, kvstate.KeyAudit, body, s.revision)
		if err == nil {
			return seq, nil
		}
		if !errors.Is(err, kvstate.ErrStale) && !errors.Is(err, kvstate.ErrIndeterminate) {
			return s.through, fmt.Errorf("audit: seal the books through sequence %d: %w", seq, err)
		}
		was := s.revision
		if s, err = readSeal(ctx, records); err != nil {
			return s.through, err
		}
		if s.revision == was { // nobody knows whether the write happened, and it is not there yet
			return s.through, fmt.Errorf("audit: seal the books through sequence %d: %w; the next audit does it", seq, kvstate.ErrIndeterminate)
		}
		if s.through < seq && s.another(created) {
			return s.through, fmt.Errorf("audit: seal the books through sequence %d: somebody sealed them for another stream meanwhile; audit again", seq)
		}
	}
	return s.through, nil
}
