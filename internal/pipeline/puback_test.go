package pipeline

import (
	"errors"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
)

func TestParsePubAck(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]PubAck{
		`{"stream":"S","seq":7}`:                       {Sequence: 7},
		`{"stream":"S","seq":7,"duplicate":true}`:      {Sequence: 7, Duplicate: true},
		`{"seq":9, "stream":"S"}`:                      {Sequence: 9},
		`{"stream":"S","domain":"D","seq":3}`:          {Sequence: 3},
		`{"stream":"S","seq":18446744073709551615}`:    {Sequence: 18446744073709551615},
		`{"stream":"S","seq":9223372036854775807}`:     {Sequence: 9223372036854775807},
		`{"stream":"S","seq":10000000000000000000}`:    {Sequence: 10000000000000000000},
		`{"stream":"S","seq":1,"batch":"b","count":2}`: {Sequence: 1, Count: 2},
	} {
		if got, err := ParsePubAck([]byte(in)); err != nil || got != want {
			t.Errorf("%s: got %+v, %v; want %+v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "{", `{"stream":"S"}`, `{"stream":"S","seq":0}`, `{"stream":"S","seq":-1}`, `+OK`} {
		if got, err := ParsePubAck([]byte(in)); !errors.Is(err, ErrGarbled) || !errors.Is(err, ErrIndeterminate) {
			t.Errorf("%q: got %+v, %v; want ErrGarbled and ErrIndeterminate", in, got, err)
		}
	}
	_, err := ParsePubAck([]byte(`{"error":{"code":400,"err_code":10071,"description":"wrong last sequence"},"stream":"S","seq":0}`))
	if api := (*APIError)(nil); !errors.As(err, &api) || api.Code != 10071 {
		t.Errorf("got %v, want the refusal with its code", err)
	}
}

func TestDeniedPublish(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`Permissions Violation for Publish to "a.b"`:      "a.b",
		`permissions violation for publish to "a.b"`:      "a.b",
		`Permissions Violation for Subscription to "a.b"`: "",
	} {
		if got, ok := deniedPublish(fmt.Errorf("%w: %s", nats.ErrPermissionViolation, text)); got != want || ok != (want != "") {
			t.Errorf("%s: got %q, %v; want %q", text, got, ok, want)
		}
	}
	if got, ok := deniedPublish(errors.New(`publish to "a"`)); ok {
		t.Errorf("another error: got %q", got)
	}
}
