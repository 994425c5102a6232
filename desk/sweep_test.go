package desk

import (
	"testing"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/pooltest"
	"github.com/tallyman-go/tallyman/kvstate"
)

// TestRequeue_PlaceTakenByWhatAwaitsTheSweep guards against a command that
// cannot be sent back because a copy that was parked aside has its subject.
func TestRequeue_PlaceTakenByWhatAwaitsTheSweep(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]func(uint64) command.Token{"a conflict": kvstate.ConflictKey, "malformed": kvstate.MalformedKey} {
		t.Run("by a copy that was parked as "+name, func(t *testing.T) {
			t.Parallel()
			settings := brisk
			settings.Removal = tallyman.RemovalSweep
			r := newRig(t, settings)
			r.placed(t, tallyman.Command{ID: "a", Kind: "echo", Payload: []byte("x")}, kvstate.ReasonExhausted)
			ack, err := pooltest.JetStream(t, r.nc).Publish(r.ctx, "main.commands.default.echo.a", []byte("other"))
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Records().PutWait(r.ctx, key(ack.Sequence), []byte("x"), 0); err != nil {
				t.Fatal(err)
			}
			out, err := r.desk.Requeue(r.ctx, ann, "a")
			if err != nil || out.Sequence != ack.Sequence+1 {
				t.Errorf("got %+v, %v, want it at sequence %d", out, err, ack.Sequence+1)
			}
		})
	}
}
