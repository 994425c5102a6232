package tallyman

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/internal/plural"
	"github.com/tallyman-go/tallyman/kvstate"
)

// Defaults of Settings.
const (
	DefaultLease       = 30 * time.Second
	DefaultMaxAttempts = 10
	DefaultBackoffMin  = time.Second
	DefaultBackoffMax  = 10 * time.Minute
	DefaultRetention   = 7 * 24 * time.Hour

	// MaxShards bounds Settings.Shards.
	MaxShards = 256

	// MinLease is the shortest lease. Below it a busy machine's own pauses
	// would look like a dead worker.
	MinLease = 200 * time.Millisecond
)

// Settings are what all participants of a pool must agree on. They lie in the
// pool's bucket under "_pool" and are read by everyone who opens the pool.
// Zero fields mean the defaults.
type Settings struct {
	// Lease is how long a worker that fell silent keeps a command: the ack
	// wait of every queue. Default 30 s, at least 200 ms.
	Lease time.Duration
	// MaxAttempts bounds the attempts before a failing command is parked.
	// Default 10, at least 1. A route may override it.
	MaxAttempts int
	// BackoffMin is the delay after the first failed attempt; it doubles with
	// each further one up to BackoffMax, each delay varied by up to a fifth.
	// Defaults 1 s and 10 min.
	BackoffMin time.Duration
	BackoffMax time.Duration
	// Retention is how long receipts are kept. A command that is submitted
	// again later runs again. Default 7 days, at least 1 s.
	Retention time.Duration
	// Shards is how many pairs of command stream and bucket the pool is spread
	// over, by a hash of the id. Default 1, at most 256. Once the pool exists it
	// is changed by tallyman reshard alone.
	Shards int
	// Removal says how settled commands leave the stream. Default RemovalAck. It
	// is fixed when the pool is made.
	Removal Removal
	// Commit says how writes reach the stream and the bucket. Default CommitEach.
	Commit Commit
}

// Removal is how settled commands leave the command stream.
type Removal string

// The ways of removal.
const (
	// RemovalAck: the ack takes the command out at once. The stream is a work queue.
	RemovalAck Removal = "ack"
	// RemovalSweep: acked commands stay for a moment and are swept out by workers in
	// bulk, which costs the server less; with fsync before every answer, far less.
	RemovalSweep Removal = "sweep"
)

// Commit is how writes reach the server.
type Commit string

// The ways of committing.
const (
	// CommitEach: every write is a message of its own; none waits for another.
	CommitEach Commit = "each"
	// CommitGroup: writes that are under way at the same time share an atomic
	// batch, and so one flush to disk. It pays on servers with sync_interval: always.
	CommitGroup Commit = "group"
)

// WithDefaults returns s with its zero fields filled in.
func (s Settings) WithDefaults() Settings {
	return s.over(Settings{
		Lease: DefaultLease, MaxAttempts: DefaultMaxAttempts, BackoffMin: DefaultBackoffMin, BackoffMax: DefaultBackoffMax,
		Retention: DefaultRetention, Shards: 1, Removal: RemovalAck, Commit: CommitEach,
	})
}

// over returns s with its zero fields taken from below.
func (s Settings) over(below Settings) Settings {
	s.Lease = cmp.Or(s.Lease, below.Lease)
	s.MaxAttempts = cmp.Or(s.MaxAttempts, below.MaxAttempts)
	s.BackoffMin = cmp.Or(s.BackoffMin, below.BackoffMin)
	s.BackoffMax = cmp.Or(s.BackoffMax, below.BackoffMax)
	s.Retention = cmp.Or(s.Retention, below.Retention)
	s.Shards = cmp.Or(s.Shards, below.Shards)
	s.Removal = cmp.Or(s.Removal, below.Removal)
	s.Commit = cmp.Or(s.Commit, below.Commit)
	return s
}

// Validate returns an error that wraps ErrSettings and names the first setting
// that is out of bounds.
func (s Settings) Validate() error {
	bad := func(name string, got any, rule string) error {
		return fmt.Errorf("%w: %s is %v; %s", ErrSettings, name, got, rule)
	}
	switch {
	case s.Lease < MinLease:
		return bad("lease", s.Lease, "give at least "+MinLease.String())
	case s.MaxAttempts < 1:
		return bad("max attempts", s.MaxAttempts, "give at least 1")
	case s.BackoffMin <= 0 || s.BackoffMax < s.BackoffMin:
		return bad("backoff", fmt.Sprintf("%v to %v", s.BackoffMin, s.BackoffMax), "give a positive minimum that is not above the maximum")
	case s.Retention < time.Second:
		return bad("retention", s.Retention, "give at least 1s")
	case s.Shards < 1 || s.Shards > MaxShards:
		return bad("shards", s.Shards, fmt.Sprintf("give 1 to %d", MaxShards))
	case s.Removal != RemovalAck && s.Removal != RemovalSweep:
		return bad("removal", s.Removal, "give ack or sweep")
	case s.Commit != CommitEach && s.Commit != CommitGroup:
		return bad("commit", s.Commit, "give each or group")
	}
	return nil
}

// Require returns an error that wraps ErrSettings if a field of want is set
// and differs from s. It says how to make both agree.
func (s Settings) Require(want Settings) error {
	differ := func(name, flag string, pool, mine any) error {
		return fmt.Errorf("%w: this participant wants %s %v, the pool has %v; drop the setting here, or stop all workers and run tallyman init --change %s %v",
			ErrSettings, name, mine, pool, flag, mine)
	}
	switch {
	case want.Lease != 0 && want.Lease != s.Lease:
		return differ("lease", "--lease", s.Lease, want.Lease)
	case want.MaxAttempts != 0 && want.MaxAttempts != s.MaxAttempts:
		return differ("max attempts", "--max-attempts", s.MaxAttempts, want.MaxAttempts)
	case want.BackoffMin != 0 && want.BackoffMin != s.BackoffMin:
		return differ("minimum backoff", "--backoff-min", s.BackoffMin, want.BackoffMin)
	case want.BackoffMax != 0 && want.BackoffMax != s.BackoffMax:
		return differ("maximum backoff", "--backoff-max", s.BackoffMax, want.BackoffMax)
	case want.Retention != 0 && want.Retention != s.Retention:
		return differ("retention", "--retention", s.Retention, want.Retention)
	case want.Shards != 0 && want.Shards != s.Shards:
		return fmt.Errorf("%w: this participant wants %s, the pool has %d; drop the setting here, or spread the pool anew with: tallyman reshard (see docs/growing.md)", ErrSettings, plural.Count(want.Shards, "shard"), s.Shards)
	case want.Removal != "" && want.Removal != s.Removal:
		return errRemoval(s.Removal)
	case want.Commit != "" && want.Commit != s.Commit:
		return differ("commit", "--commit", s.Commit, want.Commit)
	}
	return nil
}

// backoff returns the delay after the given failed attempt, 1 being the first.
func (s Settings) backoff(attempt int) time.Duration {
	d := s.BackoffMax
	if shift := attempt - 1; shift < 63 && s.BackoffMin <= d>>shift {
		d = s.BackoffMin << shift
	}
	// Vary by a fifth, so that commands that failed together do not all come
	// back together.
	return d - time.Duration(rand.Int64N(int64(d)/5+1))
}

// settingsVersion is the newest layout of the stored settings. A pool whose
// assets an older program would not understand is stored with it; any other one
// with the version before, which that program reads.
const settingsVersion = 2

func (s Settings) version() int {
	if s.Shards > 1 || s.Removal == RemovalSweep || s.Commit == CommitGroup {
		return settingsVersion
	}
	return 1
}

// storedSettings is Settings as it lies in the bucket: JSON that a person can
// read with the nats CLI.
type storedSettings struct {
	Version       int    `json:"version"`
	RecordVersion int    `json:"record_version"`
	Digest        string `json:"digest"`
	Lease         string `json:"lease"`
	MaxAttempts   int    `json:"max_attempts"`
	BackoffMin    string `json:"backoff_min"`
	BackoffMax    string `json:"backoff_max"`
	Retention     string `json:"retention"`
	Shards        int    `json:"shards,omitempty"`
	Removal       string `json:"removal,omitempty"`
	Commit        string `json:"commit,omitempty"`
	ShardOf       string `json:"shard_of,omitempty"` // see place
	Shard         int    `json:"shard,omitempty"`

	Begun *beginning `json:"begun,omitempty"` // in the bucket of shard 1, from when the pool was made

	Reshard *reshardMark `json:"reshard,omitempty"` // in the first bucket, while it is under way
}

// place says of which pool a bucket is a shard. It is stored with the settings
// in each bucket but the first. The zero value is a pool's first, or only, bucket.
type place struct {
	pool  string
	index int
}

// String names the pool as which the shard is laid out.
func (p place) String() string { return shardName(p.pool, p.index) }

func (s Settings) stored(at place) storedSettings {
	return storedSettings{
		ShardOf: at.pool, Shard: at.index,
		Version: s.version(), RecordVersion: kvstate.Version, Digest: dedupe.Algorithm,
		Lease: s.Lease.String(), MaxAttempts: s.MaxAttempts,
		BackoffMin: s.BackoffMin.String(), BackoffMax: s.BackoffMax.String(), Retention: s.Retention.String(),
		Shards: s.Shards, Removal: string(s.Removal), Commit: string(s.Commit),
	}
}

func (s storedSettings) encode() ([]byte, error) { return json.MarshalIndent(s, "", "  ") }

// errGarbled means that what lies there as settings cannot be read at all.
var errGarbled = errors.New("the stored settings are no JSON")

func decodeSettings(data []byte) (Settings, place, error) {
	var in storedSettings
	if err := json.Unmarshal(data, &in); err != nil {
		return Settings{}, place{}, fmt.Errorf("%w: %w: %w; restore key _pool or run tallyman init --change", ErrSettings, errGarbled, err)
	}
	at := place{in.ShardOf, in.Shard}
	switch {
	case in.Version < 1 || in.Version > settingsVersion:
		return Settings{}, at, fmt.Errorf("%w: the pool's settings have version %d, this program knows those up to %d; use the same version everywhere", ErrSettings, in.Version, settingsVersion)
	case in.RecordVersion != kvstate.Version:
		return Settings{}, at, fmt.Errorf("%w: the pool's records have version %d, this program writes %d; use the same version everywhere", ErrSettings, in.RecordVersion, kvstate.Version)
	case in.Digest != dedupe.Algorithm:
		return Settings{}, at, fmt.Errorf("%w: the pool's digest is %q, this program computes %q", ErrSettings, in.Digest, dedupe.Algorithm)
	}
	out := Settings{
		MaxAttempts: in.MaxAttempts,
		Shards:      cmp.Or(in.Shards, 1), Removal: cmp.Or(Removal(in.Removal), RemovalAck), Commit: cmp.Or(Commit(in.Commit), CommitEach),
	}
	for _, f := range []struct {
		name, value string
		to          *time.Duration
	}{
		{"lease", in.Lease, &out.Lease},
		{"backoff_min", in.BackoffMin, &out.BackoffMin},
		{"backoff_max", in.BackoffMax, &out.BackoffMax},
		{"retention", in.Retention, &out.Retention},
	} {
		d, err := time.ParseDuration(f.value)
		if err != nil {
			return Settings{}, at, fmt.Errorf("%w: %s of the stored settings: %w", ErrSettings, f.name, err)
		}
		*f.to = d
	}
	if err := out.Validate(); err != nil || in.Reshard == nil {
		return out, at, err
	}
	return out, at, &underwayError{*in.Reshard}
}
