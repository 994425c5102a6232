package kvstate

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/tallyman-go/tallyman/command"
	"github.com/vmihailenco/msgpack/v5"
)

// Decode reads the stored form of a record. Bytes that are damaged, hostile or
// no record at all give an error that wraps command.ErrMalformed. Fields that
// this version does not know are kept in Extra; a version number above Version
// is accepted, since newer writers may only add fields.
func Decode(data []byte) (*Record, error) {
	if err := command.CheckShape(data); err != nil {
		return nil, fmt.Errorf("kvstate: decode record: %w", err)
	}
	body := len(data) - sumSize
	if body < len(sumPrefix) || !bytes.HasSuffix(data[:body], sumPrefix) {
		return nil, fmt.Errorf("kvstate: decode record: %w: it has no checksum", command.ErrMalformed)
	}
	if want, got := binary.BigEndian.Uint32(data[body:]), checksum(data[:body]); want != got {
		return nil, fmt.Errorf("kvstate: decode record: %w: checksum is %08x, the bytes give %08x", command.ErrMalformed, want, got)
	}
	d := decoders.Get().(*decoder)
	defer decoders.Put(d)
	d.rd.Reset(data)
	d.dec.Reset(&d.rd)
	d.dec.UsePreallocateValues(false)
	r, err := d.record()
	if err != nil {
		return nil, fmt.Errorf("kvstate: decode record: %w: %w", command.ErrMalformed, err)
	}
	return r, nil
}

type decoder struct {
	rd  bytes.Reader
	dec *msgpack.Decoder
}

var decoders = sync.Pool{New: func() any {
	d := &decoder{}
	d.dec = msgpack.NewDecoder(&d.rd)
	return d
}}

func (d *decoder) record() (*Record, error) {
	n, err := d.dec.DecodeMapLen()
	if err != nil {
		return nil, err
	}
	r := &Record{}
	var sum uint64
	for i := range n {
		key, err := d.dec.DecodeString()
		if err != nil {
			return nil, err
		}
		// Bytes that look like a checksum may end any value; only the last field is one.
		if last := i == n-1; last != (key == "sum") {
			return nil, fmt.Errorf("field %q is number %d of %d; the checksum, and nothing else, comes last", key, i+1, n)
		}
		switch key {
		case "v":
			var v uint64
			err = d.uint(&v)
		case "id":
			err = d.str(&r.ID)
		case "kind":
			err = d.str(&r.Kind)
		case "queue":
			err = d.str(&r.Queue)
		case "digest":
			err = d.str((*string)(&r.Digest))
		case "state":
			err = d.str((*string)(&r.State))
		case "token":
			err = d.uint(&r.Token)
		case "attempt":
			var v uint64
			err = d.uint(&v)
			r.Attempt = int(min(v, 1<<30))
		case "owner":
			err = d.str(&r.Owner)
		case "seqs":
			err = d.seqs(r)
		case "offset":
			err = d.uint(&r.Offset)
		case "checkpoint":
			err = d.bin(&r.Checkpoint)
		case "checksum":
			err = d.uint(&sum)
		case "intent":
			err = d.bin(&r.Intent)
		case "result":
			err = d.bin(&r.Result)
		case "content_type":
			err = d.str(&r.ContentType)
		case "resolved_by":
			err = d.str(&r.ResolvedBy)
		case "followups":
			err = d.followUps(r)
		case "error":
			err = d.str(&r.Error)
		case "reason":
			err = d.str((*string)(&r.Reason))
		case "next_at":
			r.NextAt, err = d.dec.DecodeTime()
		case "command":
			r.Command = &command.Command{}
			err = d.command(r.Command)
		case "trail":
			err = d.trail(r)
		case "sum":
			err = d.dec.Skip()
		default:
			f := Field{Name: key}
			f.Value, err = d.dec.DecodeRaw()
			r.Extra = append(r.Extra, f)
		}
		if err != nil {
			return nil, fmt.Errorf("field %q: %w", key, err)
		}
	}
	if r.Checkpoint != nil && uint64(checksum(r.Checkpoint)) != sum {
		return nil, fmt.Errorf("the checkpoint's checksum is wrong")
	}
	if r.ID == "" || !r.State.Known() {
		return nil, fmt.Errorf("no record: id %q, state %q", r.ID, r.State)
	}
	return r, nil
}

func (d *decoder) str(to *string) (err error)  { *to, err = d.dec.DecodeString(); return err }
func (d *decoder) uint(to *uint64) (err error) { *to, err = d.dec.DecodeUint64(); return err }
func (d *decoder) bin(to *[]byte) (err error) {
	*to, err = d.dec.DecodeBytes()
	if err == nil && *to == nil {
		*to = []byte{}
	}
	return err
}

func (d *decoder) seqs(r *Record) error {
	n, err := d.dec.DecodeArrayLen()
	for i := 0; i < n && err == nil; i++ {
		var s uint64
		err = d.uint(&s)
		r.Seqs = append(r.Seqs, s)
	}
	return err
}

func (d *decoder) followUps(r *Record) error {
	n, err := d.dec.DecodeArrayLen()
	for i := 0; i < n && err == nil; i++ {
		var c command.Command
		err = d.command(&c)
		r.FollowUps = append(r.FollowUps, c)
	}
	return err
}

func (d *decoder) trail(r *Record) error {
	n, err := d.dec.DecodeArrayLen()
	for i := 0; i < n && err == nil; i++ {
		var s Step
		err = d.step(&s)
		r.Trail = append(r.Trail, s)
	}
	return err
}

func (d *decoder) step(s *Step) error {
	n, err := d.dec.DecodeArrayLen()
	if err != nil {
		return err
	}
	if n < 5 {
		return fmt.Errorf("a trail step of %d parts, want 5", n)
	}
	if s.At, err = d.dec.DecodeTime(); err != nil {
		return err
	}
	if err = d.str((*string)(&s.State)); err != nil {
		return err
	}
	if err = d.str(&s.Owner); err != nil {
		return err
	}
	if err = d.uint(&s.Token); err != nil {
		return err
	}
	if err = d.str(&s.Note); err != nil {
		return err
	}
	for range n - 5 {
		if err = d.dec.Skip(); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) command(c *command.Command) error {
	n, err := d.dec.DecodeMapLen()
	// Encode writes five fields at least. Less would let a few bytes make a large slice.
	if err == nil && n < 5 {
		return fmt.Errorf("a command of %d fields, want 5 or more", n)
	}
	for i := 0; i < n && err == nil; i++ {
		var key string
		if err = d.str(&key); err != nil {
			return err
		}
		switch key {
		case "id":
			err = d.str(&c.ID)
		case "kind":
			err = d.str(&c.Kind)
		case "queue":
			err = d.str(&c.Queue)
		case "content_type":
			err = d.str(&c.ContentType)
		case "payload":
			err = d.bin(&c.Payload)
		case "not_after":
			c.NotAfter, err = d.dec.DecodeTime()
		default:
			err = d.dec.Skip()
		}
	}
	return err
}
