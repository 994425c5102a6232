package command

import (
	"bytes"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"
)

// Marshal encodes v as MessagePack. The keys of every map are sorted, those of
// a struct included, so that equal values have equal bytes and therefore equal
// digests. A value that Unmarshal would refuse, such as one nested deeper than
// MaxDepth, is an error that wraps ErrMalformed.
func Marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := msgpack.GetEncoder()
	defer msgpack.PutEncoder(enc)
	enc.Reset(&buf)
	enc.UseCompactInts(true)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("command: encode %T: %w", v, err)
	}
	if err := CheckShape(buf.Bytes()); err != nil {
		return nil, fmt.Errorf("command: encode %T: %w", v, err)
	}
	sortMaps(buf.Bytes())
	return buf.Bytes(), nil
}

// Unmarshal decodes exactly one MessagePack value into v. Input that is cut
// short, nested too deeply, followed by more bytes, or that announces more
// elements than it can hold is refused with ErrMalformed before the decoder
// sees it.
func Unmarshal(data []byte, v any) (err error) {
	if err := CheckShape(data); err != nil {
		return err
	}
	// The decoder of a user's type may panic on input that its author did not foresee.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: decoding %T panicked: %v", ErrMalformed, v, p)
		}
	}()
	dec := msgpack.GetDecoder()
	defer msgpack.PutDecoder(dec)
	dec.Reset(bytes.NewReader(data))
	if err := dec.Decode(v); err != nil {
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return nil
}
