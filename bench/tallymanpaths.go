package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman"
)

// stateSize is how much a handler saves with its progress or intent, in bytes.
const stateSize = 64

// Walk implements walker.
func (ours) Walk(ctx context.Context, nc *nats.Conn, p path) error {
	route, err := routeOf(p)
	if err != nil {
		return err
	}
	return workRoute(ctx, nc, route, 0)
}

// Hold implements walker: with a handler for each of n commands.
func (ours) Hold(ctx context.Context, nc *nats.Conn, n int) error {
	return workRoute(ctx, nc, tallyman.Route{Eager: true, Handler: tallyman.HandlerFunc(
		func(ctx context.Context, _ *tallyman.Claim) (tallyman.Result, error) {
			<-ctx.Done()
			return tallyman.Result{}, ctx.Err()
		})}, n)
}

// workRoute runs a worker with one route, and the default concurrency for 0. It
// logs as a worker does, but to nowhere: each parked command is a line.
func workRoute(ctx context.Context, nc *nats.Conn, route tallyman.Route, concurrency int) error {
	pool, err := tallyman.Open(ctx, nc, poolName)
	if err != nil {
		return err
	}
	defer pool.Close()
	mux := &tallyman.Mux{}
	route.Kind = kindName
	if err := mux.Route(route); err != nil {
		return err
	}
	nowhere, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer nowhere.Close()
	worker, err := pool.NewWorker(tallyman.WorkerConfig{
		Mux: mux, Concurrency: concurrency, Logger: slog.New(slog.NewJSONHandler(nowhere, nil)),
	})
	if err != nil {
		return err
	}
	return worker.Run(ctx)
}

// routeOf returns the route whose commands go along a path.
func routeOf(p path) (tallyman.Route, error) {
	state := bytes.Repeat([]byte("s"), stateSize)
	payload := []byte(strings.Repeat("tallyman", payloadSize/8))
	var handle func(ctx context.Context, claim *tallyman.Claim) error
	switch p.name {
	case "checkpoints":
		handle = func(ctx context.Context, claim *tallyman.Claim) error {
			for i := range p.per {
				if err := claim.Progress(ctx, uint64(i+1), state); err != nil {
					return err
				}
			}
			return nil
		}
	case "follow-ups":
		handle = func(_ context.Context, claim *tallyman.Claim) error {
			born := make([]tallyman.Command, p.born)
			for i := range born {
				born[i] = tallyman.Command{Queue: laterQueue, Kind: kindName, Payload: payload}
			}
			return claim.FollowUp(born...)
		}
	case "retries":
		handle = func(_ context.Context, claim *tallyman.Claim) error {
			if claim.Attempt() == 1 {
				return tallyman.RetryAfter(time.Nanosecond, errors.New("not yet"))
			}
			return nil
		}
	case "parking":
		handle = func(context.Context, *tallyman.Claim) error {
			return tallyman.Reject(errors.New("never"))
		}
	case "prepared":
		handle = func(ctx context.Context, claim *tallyman.Claim) error {
			_, err := claim.Prepare(ctx, state)
			return err
		}
	case "takeovers", "eager claims":
		handle = func(context.Context, *tallyman.Claim) error { return nil }
	default:
		return tallyman.Route{}, fmt.Errorf("tallyman does not know the path %q", p.name)
	}
	return tallyman.Route{
		Eager: p.name == "eager claims",
		Handler: tallyman.HandlerFunc(func(ctx context.Context, claim *tallyman.Claim) (tallyman.Result, error) {
			return tallyman.Result{}, handle(ctx, claim)
		}),
	}, nil
}
