// Package dedupe establishes identity: which command an id names, and whether
// two commands under one id are the same act.
//
// # Guarantees
//
//   - [Token] is injective: two ids share a token only if they are equal byte
//     for byte. Composed and decomposed accents, "a" and "a " or upper and
//     lower case are different ids; nothing is normalised or trimmed.
//   - A token is one NATS subject token and a valid key of a NATS bucket,
//     alone and below a prefix that ends in a slash. It never starts with an
//     underscore, so it never meets a key that belongs to the pool.
//   - [ParseToken] is the strict inverse: it accepts exactly what [Token] makes.
//   - [Digest] depends on kind and payload alone, and is the same on every
//     platform and in every version that names the same [Algorithm].
//
// # Not guaranteed
//
// The digest is 128 bits of SHA-256: enough to tell an honest repeat from a
// conflict, also against someone who has to hit the digest of a given command.
// Someone who may choose both payloads finds a colliding pair in about 2^64
// attempts. Payloads are compared as bytes, so the same JSON with another
// order of keys is another command.
//
// A token may start with a hyphen, as its id may. On the command line of the
// nats CLI such a key goes after "--".
//
// # Limits
//
// An id has 1 to 256 bytes, a token 1 to 768, a digest 32.
//
// # Errors
//
// [command.ErrInvalidID], [command.ErrInvalidName] and [command.ErrMalformed]
// are wrapped by the errors of this package.
//
// All functions are pure and safe for concurrent use.
package dedupe
