package tallyman_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/internal/pooltest"
)

// A submission that is being tried again ends with its producer, also where its
// context would last longer. Close waited for that context.
func TestProducer_CloseEndsTriesWhoseContextLastsLonger(t *testing.T) {
	t.Parallel()
	nc := pooltest.Connect(t, pooltest.Server(t).URL())
	pool := pooltest.Create(t, nc, tallyman.Settings{}, tallyman.Topology{MaxCommands: 1})
	if _, err := pool.Submit(t.Context(), tallyman.Command{ID: "first", Kind: "k"}); err != nil {
		t.Fatal(err)
	}
	tries := make(chan *nats.Msg, 1000)
	if _, err := nc.ChanSubscribe(pool.Commands().Subject("*", "*", "second"), tries); err != nil {
		t.Fatal(err)
	}
	p := pool.NewProducer(tallyman.ProducerConfig{})
	long, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	told := make(chan error, 1)
	if err := p.SubmitAsync(long, tallyman.Command{ID: "second", Kind: "k"}, func(_ tallyman.Submission, err error) { told <- err }); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		select {
		case <-tries:
		case <-time.After(time.Minute):
			t.Fatal("it was not tried again")
		}
	}
	closed := make(chan error, 1)
	go func() {
		over, cancel := context.WithCancel(t.Context())
		cancel()
		closed <- p.Close(over)
	}()
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Error("Close waits for the context of a submission that is being tried again")
		cancel()
		<-closed
	}
	if err := <-told; !errors.Is(err, tallyman.ErrPoolFull) && !errors.Is(err, tallyman.ErrUnconfirmed) {
		t.Errorf("got %v, want ErrPoolFull or ErrUnconfirmed", err)
	}
}
