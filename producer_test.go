package tallyman_test

import (
	"fmt"
	"testing"

	"github.com/tallyman-go/tallyman"
)

func TestProducer_SubmitMany(t *testing.T) {
	t.Run("reports each command under its own number", func(t *testing.T) {
		p := newPool(t, tallyman.Settings{})
		producer := p.NewProducer(tallyman.ProducerConfig{})
		const n = 500
		ids := make([]string, n)
		err := producer.SubmitMany(t.Context(), func(yield func(tallyman.Command) bool) {
			for i := range n {
				if !yield(tallyman.Command{ID: fmt.Sprintf("c-%d", i), Kind: "echo"}) {
					return
				}
			}
		}, func(i int, s tallyman.Submission, err error) {
			if err != nil {
				t.Errorf("command %d: %v", i, err)
			}
			ids[i] = s.ID
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := producer.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i, got := range ids {
			if want := fmt.Sprintf("c-%d", i); got != want {
				t.Fatalf("number %d: got id %q, want %q", i, got, want)
			}
		}
	})
}
