package command

import (
	"encoding/binary"
	"fmt"
)

// MaxDepth is the deepest nesting of maps and arrays that Marshal writes and
// Unmarshal accepts.
const MaxDepth = 64

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

func skipValue(b []byte, depth int) ([]byte, error) {
	h, b, err := readHead(b)
	if err != nil {
		return nil, err
	}
	if h.size > uint64(len(b)) {
		return nil, fmt.Errorf("%w: MessagePack announces %d bytes where %d are left", ErrMalformed, h.size, len(b))
	}
	b = b[h.size:]
	if !h.container {
		return b, nil
	}
	if depth >= MaxDepth {
		return nil, fmt.Errorf("%w: MessagePack nested deeper than %d", ErrMalformed, MaxDepth)
	}
	// Every element takes at least a byte, so an honest count never exceeds what is left.
	if h.elements > uint64(len(b)) {
		return nil, fmt.Errorf("%w: MessagePack announces %d elements where %d bytes are left", ErrMalformed, h.elements, len(b))
	}
	for range h.elements {
		if b, err = skipValue(b, depth+1); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// head says what follows the first bytes of a value: data of a scalar, or the
// elements of a container, a map's keys and values counted one by one.
type head struct {
	size      uint64
	elements  uint64
	container bool
	isMap     bool
	isString  bool
}

// fixedLen holds the size in bytes of what follows the type codes 0xca to
// 0xd8 of scalars with a fixed size; zero where the size is variable.
var fixedLen = [256]uint64{
	0xca: 4, 0xcb: 8, // float
	0xcc: 1, 0xcd: 2, 0xce: 4, 0xcf: 8, // uint
	0xd0: 1, 0xd1: 2, 0xd2: 4, 0xd3: 8, // int
	0xd4: 2, 0xd5: 3, 0xd6: 5, 0xd7: 9, 0xd8: 17, // fixext: type and data
}

// readHead reads the head of a value and returns what follows it. Whether that
// is as much as the head announces is for the caller to see.
func readHead(b []byte) (head, []byte, error) {
	if len(b) == 0 {
		return head{}, nil, errCut
	}
	code := b[0]
	b = b[1:]
	switch {
	case code <= 0x7f, code >= 0xe0, code == 0xc0, code == 0xc2, code == 0xc3: // fixint, nil, bool
		return head{}, b, nil
	case code == 0xc1:
		return head{}, nil, fmt.Errorf("%w: 0xc1 is no MessagePack type", ErrMalformed)
	case fixedLen[code] > 0:
		return head{size: fixedLen[code]}, b, nil
	case code&0xf0 == 0x80:
		return head{elements: 2 * uint64(code&0x0f), container: true, isMap: true}, b, nil
	case code&0xf0 == 0x90:
		return head{elements: uint64(code & 0x0f), container: true}, b, nil
	case code&0xe0 == 0xa0:
		return head{size: uint64(code & 0x1f), isString: true}, b, nil
	}
	n, b, err := readLen(code, b)
	if err != nil {
		return head{}, nil, err
	}
	switch code {
	case 0xde, 0xdf:
		return head{elements: 2 * n, container: true, isMap: true}, b, nil
	case 0xdc, 0xdd:
		return head{elements: n, container: true}, b, nil
	case 0xc7, 0xc8, 0xc9:
		return head{size: n + 1}, b, nil // ext: one byte of type before the data
	default: // bin and str
		return head{size: n, isString: code >= 0xd9}, b, nil
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
		return 0, nil, errCut
	}
	var wide [8]byte
	copy(wide[8-size:], b[:size])
	return binary.BigEndian.Uint64(wide[:]), b[size:], nil
}

var errCut = fmt.Errorf("%w: MessagePack ends early", ErrMalformed)
