package pgxtx

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
	"github.com/tallyman-go/tallyman/outbox"
)

const (
	// quiet is after how long without a notification the connection is tested:
	// one that was cut without a word would be waited on for ever.
	quiet = 30 * time.Second
	// answerTime bounds the test, and each step of connecting.
	answerTime = 10 * time.Second
)

// Listen calls wake whenever Add has committed rows, over a connection of its
// own, until ctx ends; then it returns nil. Wake must not block: it is meant to
// be Relay.Wake. A lost connection is made anew, after pauses that grow to 10 s.
// An error is returned only if connString cannot be read.
func Listen(ctx context.Context, connString string, wake func(), log *slog.Logger) error {
	cfg, err := pgx.ParseConfig(connString)
	if err != nil {
		return fmt.Errorf("pgxtx: listen: %w", err)
	}
	keepListening(ctx, cfg, wake, log)
	return nil
}

func keepListening(ctx context.Context, cfg *pgx.ConnConfig, wake func(), log *slog.Logger) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 100*time.Millisecond, 10*time.Second
	for ctx.Err() == nil {
		err := listen(ctx, cfg, func() { pause.Reset(); wake() })
		if ctx.Err() != nil {
			return
		}
		d := pause.NextBackOff()
		log.Warn("no notifications from the database, polling alone meanwhile", "error", err, "pause", d)
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
	}
}

// listen connects and listens until something fails.
func listen(ctx context.Context, cfg *pgx.ConnConfig, wake func()) error {
	begin, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	conn, err := pgx.ConnectConfig(begin, cfg)
	if err != nil {
		return err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(end) // it goes either way
	}()
	if _, err := conn.Exec(begin, "LISTEN "+outbox.Channel); err != nil {
		return err
	}
	wake()
	for {
		if err := next(ctx, conn, wake); err != nil {
			return err
		}
	}
}

// next waits for one notification, or makes sure that the connection is alive.
func next(ctx context.Context, conn *pgx.Conn, wake func()) error {
	waiting, cancel := context.WithTimeout(ctx, quiet)
	defer cancel()
	_, err := conn.WaitForNotification(waiting)
	switch {
	case err == nil:
		wake()
		return nil
	case waiting.Err() == nil || ctx.Err() != nil:
		return err
	}
	test, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	return conn.Ping(test)
}
