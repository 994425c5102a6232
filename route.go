package tallyman

import (
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

// CommandsOf returns the command stream of the shard that a token belongs to.
func (p *Pool) CommandsOf(t command.Token) *stream.Stream { return p.ShardOf(t).Commands }

// RecordsOf returns the bucket of the shard that a token belongs to.
func (p *Pool) RecordsOf(t command.Token) *kvstate.Store { return p.ShardOf(t).Records }
