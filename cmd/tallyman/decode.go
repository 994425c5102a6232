package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/vmihailenco/msgpack/v5"
)

// maxDecode bounds what decode reads, in bytes. The server stores no message
// larger than this.
const maxDecode = 64 << 20

type decodeCommand struct{}

// Run prints as JSON what the bucket or the stream holds: a record as show
// prints it, any other MessagePack value as it is, JSON as it is, and text as
// a JSON string.
func (c *decodeCommand) Run(ctx context.Context, out *cli.Out) error {
	data, err := io.ReadAll(io.LimitReader(cli.Until(ctx, os.Stdin), maxDecode+1))
	if err != nil {
		return fmt.Errorf("decode: read stdin: %w", err)
	}
	if len(data) > maxDecode {
		return fmt.Errorf("decode: %w: more than %d bytes", command.ErrMalformed, maxDecode)
	}
	v, err := decode(data)
	if err != nil {
		// The nats CLI ends what it prints with a newline, also after raw bytes.
		if whole, ok := bytes.CutSuffix(data, []byte("\n")); ok {
			if again, err := decode(whole); err == nil {
				return out.JSON(again)
			}
		}
		return fmt.Errorf("decode: %w", err)
	}
	return out.JSON(v)
}

// decode returns something that can be printed as JSON.
func decode(data []byte) (any, error) {
	if r, err := kvstate.Decode(data); err == nil {
		return viewOf(r), nil
	}
	v, err := decodeAny(data)
	if err == nil {
		return v, nil
	}
	if trimmed := bytes.TrimSpace(data); json.Valid(trimmed) {
		return json.RawMessage(trimmed), nil
	}
	if s := strings.TrimRight(string(data), "\r\n"); s != "" && printable(s) {
		return s, nil
	}
	return nil, err
}

func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return unicode.IsControl(r) && r != '\n' && r != '\r' && r != '\t'
	})
}

// decodeAny decodes one MessagePack value of any type.
func decodeAny(data []byte) (v any, err error) {
	if err := command.CheckShape(data); err != nil {
		return nil, err
	}
	// The shape is sound; extension types of others may still surprise the decoder.
	defer func() {
		if p := recover(); p != nil {
			v, err = nil, fmt.Errorf("%w: %v", command.ErrMalformed, p)
		}
	}()
	d := msgpack.NewDecoder(bytes.NewReader(data))
	d.UsePreallocateValues(false)
	d.SetMapDecoder(decodeMap)
	v, err = d.DecodeInterface()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", command.ErrMalformed, err)
	}
	if b, ok := v.([]byte); ok {
		return bytesIn("value", b), nil
	}
	return jsonable(v), nil
}

// bytesIn gives bytes that are not text a name that says so.
func bytesIn(name string, b []byte) any {
	if s, raw := text(b); s != nil {
		return *s
	} else if raw != nil {
		return map[string]any{name + "_base64": raw}
	}
	return nil
}

// decodeMap decodes a map with keys of any type.
func decodeMap(d *msgpack.Decoder) (any, error) {
	n, err := d.DecodeMapLen()
	if err != nil || n < 0 {
		return nil, err
	}
	m := map[string]any{}
	for range n {
		k, err := d.DecodeInterface()
		if err != nil {
			return nil, err
		}
		v, err := d.DecodeInterface()
		if err != nil {
			return nil, err
		}
		key := keyText(k)
		b, isBytes := v.([]byte)
		if s, raw := text(b); isBytes && raw != nil {
			m[key+"_base64"] = raw
		} else if s != nil {
			m[key] = *s
		} else {
			m[key] = jsonable(v)
		}
	}
	return m, nil
}

func keyText(k any) string {
	switch k := k.(type) {
	case string:
		return strings.ToValidUTF8(k, "\uFFFD")
	case []byte:
		if s, _ := text(k); s != nil {
			return *s
		}
		return base64.StdEncoding.EncodeToString(k)
	}
	return fmt.Sprint(k)
}

// jsonable replaces what JSON has no words for.
func jsonable(v any) any {
	switch v := v.(type) {
	case float32:
		return jsonable(float64(v))
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Sprint(v)
		}
	case time.Time:
		return v.UTC()
	case *time.Time:
		return v.UTC()
	case []byte:
		s, raw := text(v)
		if s == nil {
			return base64.StdEncoding.EncodeToString(raw)
		}
		return *s
	case []any:
		for i := range v {
			v[i] = jsonable(v[i])
		}
	}
	return v
}
