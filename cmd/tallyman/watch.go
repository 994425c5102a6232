package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/desk"
	"github.com/tallyman-go/tallyman/kvstate"
	"golang.org/x/term"
)

type watchCommand struct {
	Kind    string   `help:"Only commands of this kind." placeholder:"K"`
	State   []string `help:"Only changes into this state: ${states}. Repeatable." placeholder:"S"`
	ID      []string `name:"id" sep:"none" help:"Only this command, beginning with where it stands now. Repeatable." placeholder:"ID"`
	Current bool     `help:"Begin with where all commands stand now."`
	JSON    bool     `name:"json" help:"Print one JSON object per line."`
}

// Run prints changes until it is interrupted or nobody reads any more. Both are
// ends that a user wants, so both are success.
func (c *watchCommand) Run(ctx context.Context, common *cli.Common, out *cli.Out) error {
	known := kvstate.States()
	states := make([]tallyman.State, 0, len(c.State))
	for _, s := range c.State {
		if !slices.Contains(known, kvstate.State(s)) {
			return fmt.Errorf("%w: --state %q; give one of %v", cli.ErrUsage, s, known)
		}
		states = append(states, tallyman.State(s))
	}
	filter := tallyman.Filter{IDs: c.ID, Kind: c.Kind, Current: c.Current || len(c.ID) > 0}
	signal.Ignore(syscall.SIGPIPE) // so that a closed pipe is an error of a write
	err := withPool(ctx, common, func(ctx context.Context, pool *tallyman.Pool) error {
		if stdout, ok := out.Writer.(*os.File); ok && !c.JSON && term.IsTerminal(int(stdout.Fd())) {
			return watchScreen(ctx, pool, filter, states, stdout)
		}
		if len(states) > 0 {
			filter.States = states
		}
		for change, err := range pool.Watch(ctx, filter) {
			switch {
			case err != nil:
				return err
			case c.JSON:
				err = out.JSON(changeOf(change, len(pool.Shards())))
			default:
				_, err = fmt.Fprintln(out, changeLine(change, len(pool.Shards())))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if ctx.Err() == nil && !errors.Is(err, syscall.EPIPE) {
		return err
	}
	return nil
}

// changeView is one line of watch as JSON.
type changeView struct {
	At       time.Time      `json:"at"`
	Revision uint64         `json:"revision"`
	Shard    *int           `json:"shard,omitempty"` // whose revision that is, in a sharded pool
	ID       string         `json:"id"`
	Kind     string         `json:"kind,omitempty"`
	Queue    string         `json:"queue,omitempty"`
	State    kvstate.State  `json:"state,omitempty"`
	Attempt  int            `json:"attempt,omitempty"`
	Token    uint64         `json:"token,omitempty"`
	Owner    string         `json:"owner,omitempty"`
	Offset   uint64         `json:"offset,omitempty"`
	NextAt   *time.Time     `json:"next_at,omitempty"`
	Reason   kvstate.Reason `json:"reason,omitempty"`
	Error    string         `json:"error,omitempty"`
	// Key is set where a record is not filed under its id. In a sharded pool it
	// names the shard.
	Key string `json:"key,omitempty"`
	// Deleted and Damaged are set where there is no record.
	Deleted bool   `json:"deleted,omitempty"`
	Damaged string `json:"damaged,omitempty"`
}

// changeOf is a change in a pool of so many shards.
func changeOf(c tallyman.Change, shards int) changeView {
	v := changeView{At: c.At.UTC(), Revision: c.Revision, ID: c.ID}
	if shards > 1 {
		v.Shard = &c.Shard
	}
	if strings.HasPrefix(string(c.Key), "_") {
		v.Key = desk.Key(c.Shard, shards, c.Key)
	}
	switch r := c.Record; {
	case c.Err != nil:
		v.Damaged = c.Err.Error()
	case r == nil:
		v.Deleted = true
	default:
		v.Kind, v.Queue, v.State, v.Attempt, v.Token = r.Kind, r.Queue, r.State, r.Attempt, r.Token
		v.Owner, v.Offset, v.NextAt, v.Reason, v.Error = r.Owner, r.Offset, known(r.NextAt), r.Reason, r.Error
	}
	return v
}

// changeLine is a change in a pool of so many shards, for people, in one line.
func changeLine(c tallyman.Change, shards int) string {
	cells := []string{moment(c.At), name(c.ID)}
	switch r := c.Record; {
	case c.Err != nil:
		cells = append(cells, "damaged: "+strconv.Quote(c.Err.Error()))
	case r == nil:
		cells = append(cells, "deleted by hand")
	default:
		cells = append(cells, name(r.Kind), name(string(r.State)), fmt.Sprintf("attempt %d", r.Attempt), name(r.Owner))
		if r.Token > 0 {
			cells = append(cells, fmt.Sprintf("token %d", r.Token))
		}
		if r.Offset > 0 {
			cells = append(cells, fmt.Sprintf("offset %d", r.Offset))
		}
		if r.Reason != "" {
			cells = append(cells, name(string(r.Reason)))
		}
		if r.Error != "" && r.State != kvstate.Claimed {
			cells = append(cells, strconv.Quote(r.Error))
		}
	}
	if strings.HasPrefix(string(c.Key), "_") {
		cells = append(cells, "under "+desk.Key(c.Shard, shards, c.Key))
	}
	return strings.Join(cells, "  ")
}

// name is s as it is if it is printable and has no spaces, or else quoted.
func name(s string) string {
	plain := s != ""
	for _, r := range s {
		plain = plain && unicode.IsPrint(r) && r != ' ' && r != '"' && r != unicode.ReplacementChar
	}
	if plain {
		return s
	}
	return strconv.Quote(s)
}
