package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/tallyman-go/tallyman/kvstate"
)

// seal is what the pool's bucket holds under kvstate.KeyAudit.
type seal struct {
	ClosedThrough uint64    `json:"closed_through"`
	ClosedAt      time.Time `json:"closed_at"`

	revision uint64
}

func readSeal(ctx context.Context, records *kvstate.Store) (seal, error) {
	e, err := records.Read(ctx, kvstate.KeyAudit)
	if err != nil {
		return seal{}, fmt.Errorf("audit: read up to where the books are closed: %w", err)
	}
	s := seal{revision: e.Revision}
	if len(e.Raw) == 0 {
		return s, nil
	}
	if err := json.Unmarshal(e.Raw, &s); err != nil {
		return seal{}, fmt.Errorf("audit: the entry %s is damaged: %w; delete it to audit from the first sequence on", kvstate.KeyAudit, err)
	}
	return s, nil
}

// closeThrough closes the books further, over the seal that was read before.
func (s seal) closeThrough(ctx context.Context, records *kvstate.Store, seq uint64) error {
	if seq <= s.ClosedThrough {
		return nil
	}
	body, err := json.Marshal(seal{ClosedThrough: seq, ClosedAt: time.Now().UTC()})
	if err != nil {
		return fmt.Errorf("audit: close the books: %w", err)
	}
	if err := records.PutWait(ctx, kvstate.KeyAudit, body, s.revision); err != nil {
		return fmt.Errorf("audit: close the books through sequence %d: %w", seq, err)
	}
	return nil
}
