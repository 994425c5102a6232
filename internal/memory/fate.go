package memory

import "time"

// Op is what a handle is about to send, or the server is about to send to it.
type Op string

// The operations.
const (
	OpRead    Op = "read"      // one record, or one command, from the leader
	OpMany    Op = "read many" // records, from any replica
	OpWrite   Op = "write"     // a record or another entry
	OpPublish Op = "publish"
	OpPull    Op = "pull"
	OpDeliver Op = "deliver"
	OpAnswer  Op = "answer" // an ack or a nak
	OpExtend  Op = "extend"
	OpFlush   Op = "flush"
	OpQueue   Op = "queue"
)

// Fate is what becomes of one operation. The zero value is that all goes well,
// at once.
type Fate struct {
	Lost       bool          // it never arrives
	Unanswered bool          // it arrives and takes effect, but the answer gets lost
	Delay      time.Duration // until it arrives; what is sent after it waits too
	Back       time.Duration // until the answer arrives, likewise
	Behind     int           // OpMany: how many writes the replica lags that answers
}

// Faults decides the fate of each operation of a handle. It may kill, freeze or
// cut the handle, which then happens before the operation. It may be called
// from several goroutines at once.
type Faults func(Op) Fate

func (f Faults) fate(op Op) Fate {
	if f == nil {
		return Fate{}
	}
	return f(op)
}
