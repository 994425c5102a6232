package main

import (
	"time"
	"unicode/utf8"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
)

// pending is the state, in what is printed, of a command without a record.
const pending kvstate.State = "pending"

// recordView is a record as JSON. Bytes are text under their own name where
// they are valid UTF-8, and base64 under <name>_base64 where they are not.
type recordView struct {
	ID       string         `json:"id"`
	Kind     string         `json:"kind"`
	Queue    string         `json:"queue"`
	Digest   string         `json:"digest"`
	State    kvstate.State  `json:"state"`
	Sequence uint64         `json:"sequence,omitempty"` // of a pending command
	Shard    *int           `json:"shard,omitempty"`    // where it lies; only show tells, and only of a sharded pool
	Bucket   string         `json:"bucket,omitempty"`
	Attempt  int            `json:"attempt"`
	Token    uint64         `json:"token"`
	Owner    string         `json:"owner"`
	Seqs     []uint64       `json:"seqs"`
	Offset   uint64         `json:"offset"`
	Revision uint64         `json:"revision,omitempty"`
	StoredAt *time.Time     `json:"stored_at,omitempty"`
	NextAt   *time.Time     `json:"next_at,omitempty"`
	Error    string         `json:"error,omitempty"`
	Reason   kvstate.Reason `json:"reason,omitempty"`

	Checkpoint       *string `json:"checkpoint,omitempty"`
	CheckpointBase64 []byte  `json:"checkpoint_base64,omitempty"`
	Intent           *string `json:"intent,omitempty"`
	IntentBase64     []byte  `json:"intent_base64,omitempty"`
	Result           *string `json:"result,omitempty"`
	ResultBase64     []byte  `json:"result_base64,omitempty"`
	ContentType      string  `json:"content_type,omitempty"`
	ResolvedBy       string  `json:"resolved_by,omitempty"`

	// What is MessagePack is here once more, as JSON.
	CheckpointDecoded any `json:"checkpoint_decoded,omitempty"`
	IntentDecoded     any `json:"intent_decoded,omitempty"`
	ResultDecoded     any `json:"result_decoded,omitempty"`

	FollowUps []commandView `json:"follow_ups,omitempty"`
	Trail     []stepView    `json:"trail"`
	Command   *commandView  `json:"command,omitempty"`
	// Next lists the acts that its state admits: requeue, resolve, discard or
	// cancel. Only show tells.
	Next []string `json:"next,omitempty"`
}

type stepView struct {
	At    time.Time     `json:"at"`
	State kvstate.State `json:"state"`
	Owner string        `json:"owner"`
	Token uint64        `json:"token"`
	Note  string        `json:"note"`
}

type commandView struct {
	ID            string  `json:"id"`
	Kind          string  `json:"kind"`
	Queue         string  `json:"queue"`
	ContentType   string  `json:"content_type,omitempty"`
	Payload       *string `json:"payload,omitempty"`
	PayloadBase64 []byte  `json:"payload_base64,omitempty"`
	// PayloadDecoded is a payload in MessagePack once more, as JSON.
	PayloadDecoded any        `json:"payload_decoded,omitempty"`
	NotAfter       *time.Time `json:"not_after,omitempty"`
}

// text returns b as text, or else as bytes for base64; neither if b is nil.
func text(b []byte) (*string, []byte) {
	if b == nil {
		return nil, nil
	}
	if !utf8.Valid(b) {
		return nil, b
	}
	s := string(b)
	return &s, nil
}

// packed returns what bytes in MessagePack say, as something that can be
// printed as JSON; nil if they are none. Where the content type does not call
// them that, they must be a map or a list that cannot be text.
func packed(b []byte, contentType string) any {
	declared := contentType == command.ContentTypeMsgpack
	if len(b) == 0 || !declared && utf8.Valid(b) {
		return nil
	}
	v, err := decodeAny(b)
	if err != nil {
		return nil
	}
	switch v.(type) {
	case map[string]any, []any:
		return v
	}
	if declared {
		return v
	}
	return nil
}

// known returns nil for the zero time.
func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func viewOf(r *kvstate.Record) recordView {
	v := recordView{
		ID: r.ID, Kind: r.Kind, Queue: r.Queue, Digest: string(r.Digest), State: r.State, Attempt: r.Attempt,
		Token: r.Token, Owner: r.Owner, Seqs: append([]uint64{}, r.Seqs...), Offset: r.Offset, Revision: r.Revision,
		StoredAt: known(r.StoredAt), NextAt: known(r.NextAt), Error: r.Error, Reason: r.Reason,
		ContentType: r.ContentType, ResolvedBy: r.ResolvedBy, Trail: make([]stepView, 0, len(r.Trail)),
	}
	v.Checkpoint, v.CheckpointBase64 = text(r.Checkpoint)
	v.Intent, v.IntentBase64 = text(r.Intent)
	v.Result, v.ResultBase64 = text(r.Result)
	v.CheckpointDecoded = packed(r.Checkpoint, "")
	v.IntentDecoded = packed(r.Intent, "")
	v.ResultDecoded = packed(r.Result, r.ContentType)
	for i := range r.FollowUps {
		v.FollowUps = append(v.FollowUps, commandOf(&r.FollowUps[i]))
	}
	for _, s := range r.Trail {
		v.Trail = append(v.Trail, stepView{s.At.UTC(), s.State, s.Owner, s.Token, s.Note})
	}
	if r.Command != nil {
		c := commandOf(r.Command)
		v.Command = &c
	}
	return v
}

func commandOf(c *command.Command) commandView {
	v := commandView{ID: c.ID, Kind: c.Kind, Queue: c.Queue, ContentType: c.ContentType, NotAfter: known(c.NotAfter)}
	v.Payload, v.PayloadBase64 = text(c.Payload)
	v.PayloadDecoded = packed(c.Payload, c.ContentType)
	return v
}

// receiptView is what wait prints.
type receiptView struct {
	ID           string         `json:"id"`
	Kind         string         `json:"kind"`
	State        tallyman.State `json:"state"`
	Result       *string        `json:"result,omitempty"`
	ResultBase64 []byte         `json:"result_base64,omitempty"`
	ContentType  string         `json:"content_type,omitempty"`
	ResolvedBy   string         `json:"resolved_by,omitempty"`
	Attempt      int            `json:"attempt"`
	Token        uint64         `json:"token"`
	Owner        string         `json:"owner"`
	At           time.Time      `json:"at"`
	Reason       kvstate.Reason `json:"reason,omitempty"`
	Error        string         `json:"error,omitempty"`
}

func receiptOf(r tallyman.Receipt) receiptView {
	v := receiptView{
		ID: r.ID, Kind: r.Kind, State: r.State, ContentType: r.ContentType, ResolvedBy: r.ResolvedBy, Attempt: r.Attempt,
		Token: r.Token, Owner: r.Owner, At: r.At.UTC(), Reason: r.Reason, Error: r.Error,
	}
	v.Result, v.ResultBase64 = text(r.Result)
	return v
}
