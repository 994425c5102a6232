// Package command is the vocabulary of Tallyman: what a command is, how it is
// named, which headers it wears on the wire, and how MessagePack is read
// without trusting its sender.
//
// It is pure data. Nothing here does I/O, blocks or keeps state, so every
// function is safe for concurrent use.
//
// # Limits
//
//   - ID: 1 to 256 bytes of valid UTF-8 without control characters.
//   - Kind and queue: 1 to 64 bytes of A-Z a-z 0-9 - _ (one subject token).
//   - MessagePack: at most [MaxDepth] levels; a length that promises more
//     bytes than are there is refused before anything is allocated.
//
// # Errors
//
// [ErrInvalidID], [ErrInvalidName] and [ErrMalformed] are wrapped by every
// error of this package; the text names the offending thing and the rule.
// [ErrConflict], [ErrTooLarge], [ErrUnconfirmed], [ErrPoolFull], [ErrNoPool] and
// [ErrUnavailable] are what may become of a submission; this package returns none of them.
package command
