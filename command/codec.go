package command

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"
)

// MaxDepth is the deepest nesting of maps and arrays that Unmarshal accepts.
const MaxDepth = 64

// Marshal encodes v as MessagePack with sorted map keys, so that equal values
// have equal bytes and therefore equal digests.
func Marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := msgpack.GetEncoder()
	defer msgpack.PutEncoder(enc)
	enc.Reset(&buf)
	enc.SetSortMapKeys(true)
	enc.UseCompactInts(true)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("command: encode %T: %w", v, err)
	}
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

// CheckShape walks one MessagePack value without allocating and reports
// whether it is whole: every length fits into the bytes that are there, the
// nesting stays within MaxDepth and nothing follows.
func CheckShape(data []byte) error {
	rest, err := skipValue(data, 0)
	if err != nil {
		return err
	}
	if len(rest) > 0 {
		return fmt.Errorf("%w: %d bytes follow the MessagePack value", ErrMalformed, len(rest))
	}
	return nil
}

// fixedLen holds the size in bytes of what follows the type codes 0xca to
// 0xd8 of scalars with a fixed size; zero where the size is variable.
var fixedLen = [256]int{
	0xca: 4, 0xcb: 8, // float
	0xcc: 1, 0xcd: 2, 0xce: 4, 0xcf: 8, // uint
	0xd0: 1, 0xd1: 2, 0xd2: 4, 0xd3: 8, // int
	0xd4: 2, 0xd5: 3, 0xd6: 5, 0xd7: 9, 0xd8: 17, // fixext: type and data
}

func skipValue(b []byte, depth int) ([]byte, error) {
	if depth > MaxDepth {
		return nil, fmt.Errorf("%w: MessagePack nested deeper than %d", ErrMalformed, MaxDepth)
	}
	if len(b) == 0 {
		return nil, fmt.Errorf("%w: MessagePack ends early", ErrMalformed)
	}
	code := b[0]
	b = b[1:]
	switch {
	case code <= 0x7f, code >= 0xe0, code == 0xc0, code == 0xc2, code == 0xc3: // fixint, nil, bool
		return b, nil
	case code == 0xc1:
		return nil, fmt.Errorf("%w: 0xc1 is no MessagePack type", ErrMalformed)
	case fixedLen[code] > 0:
		return skipBytes(b, uint64(fixedLen[code]))
	case code&0xf0 == 0x80:
		return skipElements(b, 2*uint64(code&0x0f), depth)
	case code&0xf0 == 0x90:
		return skipElements(b, uint64(code&0x0f), depth)
	case code&0xe0 == 0xa0:
		return skipBytes(b, uint64(code&0x1f))
	}
	n, b, err := readLen(code, b)
	if err != nil {
		return nil, err
	}
	switch code {
	case 0xde, 0xdf:
		return skipElements(b, 2*n, depth)
	case 0xdc, 0xdd:
		return skipElements(b, n, depth)
	case 0xc7, 0xc8, 0xc9:
		return skipBytes(b, n+1) // ext: one byte of type before the data
	default:
		return skipBytes(b, n) // str and bin
	}
}

// readLen reads the length that follows the codes of str, bin, ext, array and map.
func readLen(code byte, b []byte) (uint64, []byte, error) {
	var size int
	switch code {
	case 0xc4, 0xc7, 0xd9:
		size = 1
	case 0xc5, 0xc8, 0xda, 0xdc, 0xde:
		size = 2
	default: // 0xc6 0xc9 0xdb 0xdd 0xdf
		size = 4
	}
	if len(b) < size {
		return 0, nil, fmt.Errorf("%w: MessagePack ends early", ErrMalformed)
	}
	var wide [8]byte
	copy(wide[8-size:], b[:size])
	return binary.BigEndian.Uint64(wide[:]), b[size:], nil
}

func skipBytes(b []byte, n uint64) ([]byte, error) {
	if n > uint64(len(b)) {
		return nil, fmt.Errorf("%w: MessagePack announces %d bytes where %d are left", ErrMalformed, n, len(b))
	}
	return b[n:], nil
}

func skipElements(b []byte, n uint64, depth int) ([]byte, error) {
	// Every element takes at least a byte, so an honest count never exceeds what is left.
	if n > uint64(len(b)) {
		return nil, fmt.Errorf("%w: MessagePack announces %d elements where %d bytes are left", ErrMalformed, n, len(b))
	}
	var err error
	for range n {
		if b, err = skipValue(b, depth+1); err != nil {
			return nil, err
		}
	}
	return b, nil
}
