package tallyman_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/embedded"
)

type ResizeArgs struct {
	Image string
	Width int
}

type ResizeDone struct{ Bytes int }

var Resize = tallyman.NewKind[ResizeArgs, ResizeDone]("resize")

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// The code of README.md: a pool on a server in this process, a worker, a
// command that is submitted twice, and its one receipt.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	server, err := embedded.Start(embedded.Config{}) // or any nats-server with JetStream
	check(err)
	defer server.Close()
	nc, err := tallyman.Connect(server.URL())
	check(err)
	defer nc.Close()

	// Create is the operator's act, once: tallyman init does the same.
	check(tallyman.Create(ctx, nc, "main", tallyman.Settings{}, tallyman.Topology{}))
	pool, err := tallyman.Open(ctx, nc, "main")
	check(err)
	defer pool.Close()

	mux := &tallyman.Mux{}
	Resize.Handle(mux, func(ctx context.Context, claim *tallyman.Claim, in ResizeArgs) (ResizeDone, error) {
		fmt.Printf("%s: resize %s to %d, attempt %d\n", claim.ID(), in.Image, in.Width, claim.Attempt())
		return ResizeDone{Bytes: 10 * in.Width}, nil
	})
	worker, err := pool.NewWorker(tallyman.WorkerConfig{Mux: mux, Logger: slog.New(slog.DiscardHandler)})
	check(err)
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(ctx) }()

	cmd, err := Resize.Command("img-7", ResizeArgs{Image: "7.png", Width: 80})
	check(err)
	_, err = pool.Submit(ctx, cmd)
	check(err)
	receipt, err := pool.Wait(ctx, "img-7")
	check(err)
	done, err := Resize.Result(receipt)
	check(err)
	fmt.Println(receipt.State, done.Bytes)

	again, err := pool.Submit(ctx, cmd) // the receipt absorbs it
	check(err)
	fmt.Println("absorbed:", again.Absorbed)

	stop() // the worker drains
	check(<-ended)
	// Output:
	// img-7: resize 7.png to 80, attempt 1
	// completed 800
	// absorbed: true
}

// A long command saves how far it got. Whoever takes it over after a crash
// resumes there. A detached claim tests such a handler without a server.
func ExampleClaim_Progress() {
	sum := tallyman.HandlerFunc(func(ctx context.Context, claim *tallyman.Claim) (tallyman.Result, error) {
		for row := claim.Offset(); row < 3; row++ {
			fmt.Println("row", row)
			if err := claim.Progress(ctx, row+1, nil); err != nil {
				return tallyman.Result{}, err // ErrLeaseLost: stop, somebody else has it
			}
		}
		return tallyman.Result{Body: []byte("3 rows")}, nil
	})

	taken := tallyman.Detached(tallyman.DetachedConfig{
		Command: tallyman.Command{ID: "report-1", Kind: "report"}, Attempt: 2, Offset: 1,
	})
	result, err := sum.Handle(context.Background(), taken)
	check(err)
	fmt.Printf("%s, offset %d\n", result.Body, taken.Offset())
	// Output:
	// row 1
	// row 2
	// 3 rows, offset 3
}

// What a handler's error means for the command.
func ExampleReject() {
	pay := tallyman.HandlerFunc(func(_ context.Context, claim *tallyman.Claim) (tallyman.Result, error) {
		if len(claim.Payload()) == 0 {
			// Parked at once; another attempt would fail in the same way.
			return tallyman.Result{}, tallyman.Reject(fmt.Errorf("no amount"))
		}
		// A failed attempt, tried again after the pool's backoff.
		return tallyman.Result{}, fmt.Errorf("the bank is away")
	})

	claim := tallyman.Detached(tallyman.DetachedConfig{Command: tallyman.Command{ID: "pay-1", Kind: "pay"}})
	_, err := pay.Handle(context.Background(), claim)
	fmt.Println(err)
	// Output: no amount
}
