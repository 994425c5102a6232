package kvstate

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tallyman-go/tallyman/command"
)

// Keys that begin with "_" belong to the pool; an id's token never does.
const (
	// KeySettings holds the pool's settings as JSON.
	KeySettings command.Token = "_pool"
	// KeyAudit holds up to where the books are sealed, as JSON.
	KeyAudit command.Token = "_audit"
	// KeyJournal holds up to where the journal's commands have been published,
	// and its books are sealed, as JSON. No token begins with "_", so it never
	// meets a snapshot.
	KeyJournal command.Token = journalPrefix + "_mark"

	// keyEnd is where ScanMovable marks the end of what it has to meet.
	keyEnd command.Token = "_end"

	absorbedPrefix  = "_absorbed/"
	malformedPrefix = "_malformed/"
	conflictPrefix  = "_conflict/"
	corruptPrefix   = "_corrupt/"
	payloadPrefix   = "_payload/"
	probePrefix     = "_probe/"
	notePrefix      = "_note."
	pausePrefix     = "_pause/"
	journalPrefix   = "_journal/"
)

// AbsorbedKey is where a sequence is accounted for that changed nothing,
// because its command had an outcome already. The value is the id.
func AbsorbedKey(seq uint64) command.Token { return seqKey(absorbedPrefix, seq) }

// MalformedKey is where the parked record of an undecodable message lies.
func MalformedKey(seq uint64) command.Token { return seqKey(malformedPrefix, seq) }

// ConflictKey is where the parked record of a command lies whose id already
// stands for another one.
func ConflictKey(seq uint64) command.Token { return seqKey(conflictPrefix, seq) }

// FollowUpConflictKey is where the parked record of a follow-up lies that
// could not be born, because its id already stands for another command.
func FollowUpConflictKey(parent command.Token, n int) command.Token {
	return command.Token(fmt.Sprintf("%s%s/%d", conflictPrefix, parent, n))
}

// CorruptKey is where the bytes of a record are kept that did not decode.
func CorruptKey(key command.Token, revision uint64) command.Token {
	return command.Token(fmt.Sprintf("%s%s/%d", corruptPrefix, key, revision))
}

// CorruptOf returns whose damaged bytes lie under key, if it is a CorruptKey.
func CorruptOf(key command.Token) (of command.Token, ok bool) {
	rest, ok := strings.CutPrefix(string(key), corruptPrefix)
	if !ok {
		return "", false
	}
	if i := strings.LastIndexByte(rest, '/'); i >= 0 {
		rest = rest[:i]
	}
	return command.Token(rest), true
}

// PayloadKey is where the payload of a parked command lies that does not fit
// into its record.
func PayloadKey(key command.Token) command.Token { return payloadPrefix + key }

// ProbeKey is what a worker writes to learn whether it can.
func ProbeKey(owner string) command.Token { return command.Token(probePrefix + owner) }

// NoteKey is where one note about the command with this token lies. Tokens
// hold no dot, so "_note.<token>.*" finds all of them.
func NoteKey(token command.Token, unique string) command.Token {
	return notePrefix + token + "." + command.Token(unique)
}

// PauseKey is where it says who paused a queue, and why, as JSON.
func PauseKey(queue string) command.Token { return command.Token(pausePrefix + queue) }

// Aside reports whether key holds a parked record that is not filed under its
// id: of a message that did not decode, or of a copy that is another command.
func Aside(key command.Token) bool { return isParkedKey(key) }

// AbsorbedSeq returns the sequence that key accounts for, if it is an AbsorbedKey.
func AbsorbedSeq(key command.Token) (seq uint64, ok bool) {
	digits, ok := strings.CutPrefix(string(key), absorbedPrefix)
	if !ok {
		return 0, false
	}
	seq, err := strconv.ParseUint(digits, 10, 64)
	return seq, err == nil
}

// Own reports whether key belongs to the pool itself and holds no record of a command.
func Own(key command.Token) bool {
	return strings.HasPrefix(string(key), "_") && !isParkedKey(key)
}

// isParkedKey reports whether key holds a parked record that is not filed under its id.
func isParkedKey(key command.Token) bool {
	return strings.HasPrefix(string(key), malformedPrefix) || strings.HasPrefix(string(key), conflictPrefix)
}

func seqKey(prefix string, seq uint64) command.Token {
	return command.Token(prefix + strconv.FormatUint(seq, 10))
}

// SnapshotKey is where one of the two snapshots of a journal's run lies; slot
// is 0 or 1.
func SnapshotKey(run command.Token, slot int) command.Token {
	return command.Token(fmt.Sprintf("%s%s/%d", journalPrefix, run, slot))
}
