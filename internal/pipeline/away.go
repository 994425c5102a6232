package pipeline

import (
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Away adds ErrNoResponders to an error of the client library which says that
// JetStream, or enough of its cluster, is not there at present. Other errors
// come back as they are.
func Away(err error) error {
	api := (*jetstream.APIError)(nil)
	switch {
	case err == nil, errors.Is(err, ErrNoResponders):
		return err
	case errors.Is(err, nats.ErrNoResponders):
	case errors.As(err, &api) && (api.Code == 503 || api.ErrorCode == 10005): // no leader, not enabled; too few peers
	default:
		return err
	}
	return fmt.Errorf("%w: %w", ErrNoResponders, err)
}
