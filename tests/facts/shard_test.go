package facts

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/embedded"
)

func TestFact_PartitionIsTheHashOfShards(t *testing.T) {
	t.Parallel()
	config := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(config, []byte(`mappings: { "in.*": "out.{{partition(7,1)}}.{{wildcard(1)}}" }`), 0o600); err != nil {
		t.Fatal(err)
	}
	f, _ := onOwnServer(t, "the shard of an id can be computed by the server's own mapping", embedded.Config{ConfigFile: config, Dir: t.TempDir()})
	sub, err := f.nc.SubscribeSync("out.>")
	f.must(err)
	for i := range 50 {
		token := command.Token(fmt.Sprintf("order/%d=20x", i))
		f.must(f.nc.Publish("in."+string(token), nil))
		m, err := sub.NextMsgWithContext(f.ctx)
		f.must(err)
		if want := fmt.Sprintf("out.%d.%s", dedupe.Shard(token, 7), token); m.Subject != want {
			f.Errorf("the server maps %s to %s, want %s", token, m.Subject, want)
		}
	}
}

func TestFact_ALeaderPassesOnItsLeadToWhomItIsTold(t *testing.T) {
	t.Parallel()
	f := onCluster(t, "Create evens out who leads the shards")
	s := f.commands(nil)
	n := s.CachedInfo().Config.Name
	f.stored(n+".a", headMsgID, "before")
	for range 3 {
		var to string
		f.eventually("there is a leader and somebody to follow it", func() bool {
			info, err := s.Info(f.ctx)
			if err != nil || info.Cluster == nil || info.Cluster.Leader == "" {
				return false
			}
			for _, r := range info.Cluster.Replicas {
				if r.Current {
					to = r.Name
				}
			}
			return to != ""
		})
		// Told only once it may be another that wins the election.
		f.eventually("it leads", func() bool {
			ask, cancel := context.WithTimeout(f.ctx, time.Second)
			defer cancel()
			_, err := f.nc.RequestWithContext(ask, "$JS.API.STREAM.LEADER.STEPDOWN."+n, fmt.Appendf(nil, `{"placement":{"preferred":%q}}`, to))
			if err != nil {
				return false
			}
			info, err := s.Info(ask)
			return err == nil && info.Cluster != nil && info.Cluster.Leader == to
		})
	}
	if got := f.held(s); got != 1 {
		f.Errorf("got %d messages after the lead was passed on, want 1", got)
	}
}
