package command_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman/command"
)

func TestValidateID(t *testing.T) {
	t.Parallel()
	t.Run("takes any text", func(t *testing.T) {
		t.Parallel()
		for _, id := range []string{
			"a", "123", "a b", " ", "a.b", "*", ">", "..", "order.", "_pool", "🚢", "caf\u00e9", "cafe\u0301",
			"\u2028", "\ufffd", strings.Repeat("x", command.MaxIDLen), strings.Repeat("é", command.MaxIDLen/2),
		} {
			if err := command.ValidateID(id); err != nil {
				t.Errorf("ValidateID(%.40q) = %v", id, err)
			}
		}
	})
	t.Run("refuses what is empty, long, no UTF-8 or a control character", func(t *testing.T) {
		t.Parallel()
		for _, c := range []struct{ id, says string }{
			{"", "empty"},
			{strings.Repeat("x", command.MaxIDLen+1), "257 bytes, the limit is 256"},
			{strings.Repeat("é", command.MaxIDLen/2+1), "258 bytes"},
			{strings.Repeat("x", 1<<20), "1048576 bytes"},
			{"a\xff", "UTF-8"},
			{"\xed\xa0\x80", "UTF-8"},
			{"a\nb", "control character U+000A at byte 1"},
			{"a\x00", "control character U+0000"},
			{"\x7f", "U+007F"},
			{"é\u0085", "U+0085 at byte 2"},
		} {
			err := command.ValidateID(c.id)
			if !errors.Is(err, command.ErrInvalidID) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("ValidateID(%.20q) = %.300v, want ErrInvalidID that says %q", c.id, err, c.says)
			}
			if err != nil && len(err.Error()) > 400 {
				t.Errorf("the error on an id of %d bytes has %d bytes itself", len(c.id), len(err.Error()))
			}
		}
	})
}

func TestValidateName(t *testing.T) {
	t.Parallel()
	t.Run("takes one subject token", func(t *testing.T) {
		t.Parallel()
		for _, name := range []string{"a", "A-z_09", "-", "_", strings.Repeat("k", command.MaxNameLen)} {
			if err := command.ValidateName("kind", name); err != nil {
				t.Errorf("ValidateName(%q) = %v", name, err)
			}
		}
	})
	t.Run("refuses every byte outside its alphabet", func(t *testing.T) {
		t.Parallel()
		const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
		for b := range 256 {
			name := "a" + string([]byte{byte(b)})
			err := command.ValidateName("queue", name)
			if got, want := err == nil, strings.IndexByte(alphabet, byte(b)) >= 0; got != want {
				t.Errorf("ValidateName(%q) accepts: %v, want %v", name, got, want)
			}
			if err != nil && !errors.Is(err, command.ErrInvalidName) {
				t.Errorf("ValidateName(%q) = %v, want ErrInvalidName", name, err)
			}
		}
	})
	t.Run("refuses what is empty or long, and says what it names", func(t *testing.T) {
		t.Parallel()
		for _, name := range []string{"", strings.Repeat("k", command.MaxNameLen+1), strings.Repeat("k", 1<<20)} {
			err := command.ValidateName("pool", name)
			if !errors.Is(err, command.ErrInvalidName) || !strings.Contains(err.Error(), "pool") || len(err.Error()) > 300 {
				t.Errorf("ValidateName of %d bytes = %.300v", len(name), err)
			}
		}
	})
}

func TestCommand_Validate(t *testing.T) {
	t.Parallel()
	t.Run("fills in the default queue", func(t *testing.T) {
		t.Parallel()
		c := command.Command{ID: "a", Kind: "k"}
		if err := c.Validate(); err != nil || c.Queue != command.DefaultQueue {
			t.Errorf("Validate() = %v, queue %q, want %q", err, c.Queue, command.DefaultQueue)
		}
	})
	t.Run("keeps a given queue", func(t *testing.T) {
		t.Parallel()
		c := command.Command{ID: "a", Kind: "k", Queue: "slow"}
		if err := c.Validate(); err != nil || c.Queue != "slow" {
			t.Errorf("Validate() = %v, queue %q", err, c.Queue)
		}
	})
	t.Run("names the command whose kind or queue is wrong", func(t *testing.T) {
		t.Parallel()
		for _, c := range []command.Command{{ID: "img-7"}, {ID: "img-7", Kind: "a.b"}, {ID: "img-7", Kind: "k", Queue: "*"}} {
			err := c.Validate()
			if !errors.Is(err, command.ErrInvalidName) || !strings.Contains(err.Error(), "img-7") {
				t.Errorf("Validate of kind %q queue %q = %v", c.Kind, c.Queue, err)
			}
		}
	})
	t.Run("refuses a deadline that its header cannot spell", func(t *testing.T) {
		t.Parallel()
		for at, want := range map[time.Time]error{
			{}: nil,
			time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC): nil,
			time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC):     command.ErrInvalidName,
			time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC):        command.ErrInvalidName,
		} {
			c := command.Command{ID: "a", Kind: "k", NotAfter: at}
			if err := c.Validate(); !errors.Is(err, want) {
				t.Errorf("Validate with NotAfter %v = %v, want %v", at, err, want)
			}
		}
	})
	t.Run("refuses an invalid id", func(t *testing.T) {
		t.Parallel()
		c := command.Command{Kind: "k"}
		if err := c.Validate(); !errors.Is(err, command.ErrInvalidID) {
			t.Errorf("Validate() = %v, want ErrInvalidID", err)
		}
	})
}
