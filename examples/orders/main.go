// Orders shows the whole way in one process: typed kinds, a handler that saves
// its progress and asks for a follow-up, submissions that repeat, and receipts.
//
//	go run ./examples/orders
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/embedded"
)

// Charge asks for money; Mail tells the customer.
type (
	Charge struct {
		Customer string
		Cents    int
	}
	Charged struct{ Reference string }
	Mail    struct{ To, Text string }
)

// One value per kind, shared by those who submit and those who work.
var (
	charge = tallyman.NewKind[Charge, Charged]("charge")
	mail   = tallyman.NewKind[Mail, struct{}]("mail")
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "orders:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	server, err := embedded.Start(embedded.Config{})
	if err != nil {
		return err
	}
	defer server.Close()
	nc, err := tallyman.Connect(server.URL())
	if err != nil {
		return err
	}
	defer nc.Close()
	if err := tallyman.Create(ctx, nc, "orders", tallyman.Settings{}, tallyman.Topology{}); err != nil {
		return err
	}
	pool, err := tallyman.Open(ctx, nc, "orders")
	if err != nil {
		return err
	}
	defer pool.Close()

	mux := &tallyman.Mux{}
	charge.Handle(mux, func(_ context.Context, claim *tallyman.Claim, in Charge) (Charged, error) {
		// A real one passes claim.ID() to the payment provider as its idempotency key.
		letter, err := mail.Command("", Mail{To: in.Customer, Text: fmt.Sprintf("charged %d cents", in.Cents)})
		if err != nil {
			return Charged{}, err
		}
		if err := claim.FollowUp(letter); err != nil {
			return Charged{}, err
		}
		return Charged{Reference: "ref-" + claim.ID()}, nil
	})
	mail.Handle(mux, func(_ context.Context, _ *tallyman.Claim, in Mail) (struct{}, error) {
		fmt.Printf("mail to %s: %s\n", in.To, in.Text)
		return struct{}{}, nil
	})
	quiet := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	worker, err := pool.NewWorker(tallyman.WorkerConfig{Mux: mux, Logger: quiet})
	if err != nil {
		return err
	}
	working, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(working) }()

	order, err := charge.Command("order-1001", Charge{Customer: "ada@example.org", Cents: 4200})
	if err != nil {
		return err
	}
	for range 3 { // a nervous customer
		sub, err := pool.Submit(ctx, order)
		if err != nil {
			return err
		}
		fmt.Printf("submitted %s, absorbed: %v\n", sub.ID, sub.Absorbed)
	}
	receipt, err := pool.Wait(ctx, "order-1001")
	if err != nil {
		return err
	}
	done, err := charge.Result(receipt)
	if err != nil {
		return err
	}
	fmt.Printf("%s: %s after %d attempt\n", receipt.ID, done.Reference, receipt.Attempt)
	if _, err := pool.Wait(ctx, "order-1001/1"); err != nil { // the follow-up
		return err
	}
	stop()
	return <-ended
}
