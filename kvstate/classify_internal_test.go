package kvstate

import (
	"errors"
	"testing"

	"github.com/tallyman-go/tallyman/internal/pipeline"
)

// On a replicated bucket a write that comes too late may be refused with another code.
func TestClassify(t *testing.T) {
	t.Parallel()
	for code, want := range map[int]error{10071: ErrStale, 10164: ErrStale, 10054: ErrTooLarge, 10059: ErrNoBucket} {
		if err := classify(&pipeline.APIError{Code: code}); !errors.Is(err, want) {
			t.Errorf("code %d: got %v, want %v", code, err, want)
		}
	}
}
