package dedupe

import (
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"sync"

	"github.com/tallyman-go/tallyman/command"
)

// Algorithm names how Digest works. All participants of a pool must agree on
// it, so it is one of the pool's settings.
const Algorithm = "sha256-128"

// digestSize is how many bytes of the hash make a digest.
const digestSize = 16

// Digest is the fingerprint of kind and payload: the first 16 bytes of SHA-256
// over kind, a zero byte and payload, in lower-case hexadecimal. No valid kind
// holds a zero byte, so the boundary between the two is never in doubt. It
// allocates nothing but its result.
func Digest(kind string, payload []byte) command.Digest {
	text := digest(kind, payload)
	return command.Digest(text[:])
}

// spelled is the text of a digest.
type spelled [2 * digestSize]byte

func digest(kind string, payload []byte) spelled {
	var small [512]byte
	if len(kind)+1+len(payload) <= len(small) {
		n := copy(small[:], kind) + 1 // the zero byte is there already
		n += copy(small[n:], payload)
		sum := sha256.Sum256(small[:n])
		return spell(sum[:digestSize])
	}
	h := hashers.Get().(*hasher)
	defer hashers.Put(h)
	h.Reset()
	h.scratch = append(append(h.scratch[:0], kind...), 0)
	h.Write(h.scratch)
	h.Write(payload)
	h.scratch = h.Sum(h.scratch[:0])
	return spell(h.scratch[:digestSize])
}

// hasher is a hash with the buffer that its interface would otherwise make the
// caller allocate.
type hasher struct {
	hash.Hash
	scratch []byte
}

var hashers = sync.Pool{New: func() any { return &hasher{Hash: sha256.New()} }}

func spell(sum []byte) (text spelled) {
	hex.Encode(text[:], sum)
	return text
}

// Identify validates c, fills in the default queue, and establishes its token
// and digest. The error wraps command.ErrInvalidID or command.ErrInvalidName.
func Identify(c command.Command) (command.Envelope, error) {
	if err := c.Validate(); err != nil {
		return command.Envelope{}, err
	}
	token, err := Token(c.ID)
	if err != nil {
		return command.Envelope{}, err
	}
	return command.Envelope{Command: c, Token: token, Digest: Digest(c.Kind, c.Payload)}, nil
}
