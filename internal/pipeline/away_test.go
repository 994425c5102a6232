package pipeline

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestAway(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		err  error
		want bool
	}{
		{"nothing", nil, false},
		{"nobody listens", fmt.Errorf("x: %w", nats.ErrNoResponders), true},
		{"JetStream is off", jetstream.ErrJetStreamNotEnabled, true},
		{"the cluster has no leader", &jetstream.APIError{Code: 503, ErrorCode: 10008}, true},
		{"too few peers", &jetstream.APIError{Code: 400, ErrorCode: 10005}, true},
		{"there is no such stream", jetstream.ErrStreamNotFound, false},
		{"a timeout", context.DeadlineExceeded, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			err := Away(c.err)
			if got := errors.Is(err, ErrNoResponders); got != c.want {
				t.Errorf("got %v for %v, want %v", got, c.err, c.want)
			}
			if c.err != nil && !errors.Is(err, c.err) {
				t.Errorf("%v does not wrap %v", err, c.err)
			}
		})
	}
}
