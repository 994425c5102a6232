package command

// Headers that a command or a record wears. They are plain text, so that the
// nats CLI shows them.
const (
	HeaderMsgID       = "Nats-Msg-Id"
	HeaderID          = "Tallyman-Id"
	HeaderDigest      = "Tallyman-Digest"
	HeaderContentType = "Content-Type"
	// HeaderNotAfter holds Command.NotAfter as RFC 3339 with nanoseconds.
	HeaderNotAfter = "Tallyman-Not-After"

	HeaderState   = "Tallyman-State"
	HeaderKind    = "Tallyman-Kind"
	HeaderAttempt = "Tallyman-Attempt"
	HeaderOwner   = "Tallyman-Owner"
	HeaderOffset  = "Tallyman-Offset"
	HeaderReason  = "Tallyman-Reason"
)

// ContentTypeMsgpack marks payloads and results written by typed kinds.
const ContentTypeMsgpack = "application/msgpack"
