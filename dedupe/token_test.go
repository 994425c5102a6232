package dedupe_test

import (
	"errors"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
)

// naturalIDs are ids as people choose them, with the token of each.
var naturalIDs = []struct{ id, token string }{
	{"a b", "a=20b"},
	{" a", "=20a"},
	{"a ", "a=20"},
	{"a.b", "a=2Eb"},
	{"*", "=2A"},
	{">", "=3E"},
	{"$KV.main.a", "=24KV=2Emain=2Ea"},
	{"..", "=2E=2E"},
	{".", "=2E"},
	{"order.", "order=2E"},
	{"a:b", "a=3Ab"},
	{"123", "123"},
	{"-rf", "-rf"},
	{"--", "--"},
	{"🚢", "=F0=9F=9A=A2"},
	{"caf\u00e9", "caf=C3=A9"},
	{"cafe\u0301", "cafe=CC=81"},
	{"a/b", "a/b"},
	{"a/", "a/"},
	{"/a", "/a"},
	{"/", "/"},
	{"//", "//"},
	{"_", "=5F"},
	{"__", "=5F_"},
	{"_pool", "=5Fpool"},
	{"_absorbed/1", "=5Fabsorbed/1"},
	{"a_", "a_"},
	{"=", "=3D"},
	{"=2A", "=3D2A"},
	{"=5F", "=3D5F"},
	{"a=b", "a=3Db"},
	{`back\slash "quoted"`, "back=5Cslash=20=22quoted=22"},
	{"A", "A"},
	{"a", "a"},
	{strings.Repeat("x", 256), strings.Repeat("x", 256)},
	{strings.Repeat(".", 256), strings.Repeat("=2E", 256)},
}

func TestToken(t *testing.T) {
	t.Parallel()
	t.Run("spells natural ids and reads them back", func(t *testing.T) {
		t.Parallel()
		for _, c := range naturalIDs {
			got, err := dedupe.Token(c.id)
			if err != nil || string(got) != c.token {
				t.Errorf("Token(%q) = %q, %v, want %q", c.id, got, err, c.token)
			}
			id, err := dedupe.ParseToken(command.Token(c.token))
			if err != nil || id != c.id {
				t.Errorf("ParseToken(%q) = %q, %v, want %q", c.token, id, err, c.id)
			}
		}
	})
	t.Run("refuses what is no id", func(t *testing.T) {
		t.Parallel()
		for _, id := range []string{
			"", strings.Repeat("x", 257), strings.Repeat(".", 257), strings.Repeat("é", 129),
			"a\nb", "a\x00", "\t", "a\u0085b", "\x7f", "\xff", "a\xc3", "\xed\xa0\x80",
		} {
			if got, err := dedupe.Token(id); !errors.Is(err, command.ErrInvalidID) {
				t.Errorf("Token(%.40q) = %q, %v, want ErrInvalidID", id, got, err)
			}
		}
	})
}

func TestToken_Allocates(t *testing.T) {
	id := strings.Repeat("order-2026_07/", 18)
	if got := testing.AllocsPerRun(100, func() { mustToken(t, id) }); got != 0 {
		t.Errorf("Token of a plain id allocates %v times, want 0", got)
	}
	if got := testing.AllocsPerRun(100, func() { _, _ = dedupe.ParseToken(command.Token(id)) }); got != 0 {
		t.Errorf("ParseToken of a plain token allocates %v times, want 0", got)
	}
	if got := testing.AllocsPerRun(100, func() { mustToken(t, "a b") }); got != 1 {
		t.Errorf("Token of an id to escape allocates %v times, want 1", got)
	}
}

func TestParseToken(t *testing.T) {
	t.Parallel()
	for name, tokens := range map[string][]string{
		"lower-case hexadecimal":           {"=2a", "=2e", "a=c3=a9", "=5f"},
		"an escape of a plain byte":        {"=41", "a=2D", "a=5F", "=2F", "_=5F"},
		"a leading underscore":             {"_", "_pool", "_absorbed/7"},
		"a raw byte that needs an escape":  {"a b", "a.b", "*", ">", "é", "a:b"},
		"an escape cut short":              {"=", "a=", "=2", "a=F", "=2A="},
		"an escape of no digits":           {"=XX", "=-1", "= 1", "=0x", "=2G"},
		"an id that is no valid UTF-8":     {"=FF", "=C3", "a=C3b", "=ED=A0=80"},
		"an id with a control character":   {"=00", "a=0A", "=7F", "=C2=85"},
		"nothing":                          {""},
		"an id beyond the limit of length": {strings.Repeat("x", 257), strings.Repeat("=2E", 257)},
	} {
		t.Run("refuses "+name, func(t *testing.T) {
			t.Parallel()
			for _, token := range tokens {
				if got, err := dedupe.ParseToken(command.Token(token)); !errors.Is(err, command.ErrMalformed) {
					t.Errorf("ParseToken(%.40q) = %q, %v, want ErrMalformed", token, got, err)
				}
			}
		})
	}
}

// TestToken_Injective draws short ids from a small alphabet of troublesome
// bytes, so that a collision, if there can be one, is likely to be met.
func TestToken_Injective(t *testing.T) {
	t.Parallel()
	pieces := []string{"_", "=", "/", "-", ".", "2", "A", "a", "5", "F", "E", " ", "*", "é", "e\u0301", "=5F", "=2E"}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	ids := make(map[command.Token]string)
	for range 50_000 {
		var b strings.Builder
		for range 1 + rng.IntN(4) {
			b.WriteString(pieces[rng.IntN(len(pieces))])
		}
		id := b.String()
		token := mustToken(t, id)
		if other, ok := ids[token]; ok && other != id {
			t.Fatalf("ids %q and %q share the token %q", id, other, token)
		}
		ids[token] = id
		if got, err := dedupe.ParseToken(token); err != nil || got != id {
			t.Fatalf("ParseToken(Token(%q)) = %q, %v", id, got, err)
		}
	}
	if len(ids) < 1000 {
		t.Fatalf("only %d different ids were drawn", len(ids))
	}
}

var tokenShape = regexp.MustCompile(`^[-A-Za-z0-9/=][-A-Za-z0-9_/=]{0,767}$`)

func FuzzToken(f *testing.F) {
	for _, c := range naturalIDs {
		f.Add(c.id)
	}
	f.Add("\xff")
	f.Add("")
	f.Fuzz(func(t *testing.T, id string) {
		token, err := dedupe.Token(id)
		if valid := command.ValidateID(id) == nil; valid != (err == nil) {
			t.Fatalf("Token(%q) = %q, %v, but the id's validity is %v", id, token, err, valid)
		}
		if err != nil {
			return
		}
		if !tokenShape.MatchString(string(token)) {
			t.Fatalf("Token(%q) = %q leaves the alphabet", id, token)
		}
		if got, err := dedupe.ParseToken(token); err != nil || got != id {
			t.Fatalf("ParseToken(%q) = %q, %v, want %q", token, got, err, id)
		}
	})
}

func FuzzParseToken(f *testing.F) {
	for _, c := range naturalIDs {
		f.Add(c.token)
		f.Add(c.id)
	}
	f.Add("=2a")
	f.Add("=5F=5F")
	f.Fuzz(func(t *testing.T, token string) {
		id, err := dedupe.ParseToken(command.Token(token))
		if err != nil {
			if !errors.Is(err, command.ErrMalformed) {
				t.Fatalf("ParseToken(%q): %v does not wrap ErrMalformed", token, err)
			}
			return
		}
		if !utf8.ValidString(id) {
			t.Fatalf("ParseToken(%q) = %q, which is no valid UTF-8", token, id)
		}
		if got, err := dedupe.Token(id); err != nil || string(got) != token {
			t.Fatalf("ParseToken(%q) = %q, whose token is %q, %v", token, id, got, err)
		}
	})
}

func mustToken(t testing.TB, id string) command.Token {
	t.Helper()
	token, err := dedupe.Token(id)
	if err != nil {
		t.Fatalf("Token(%q): %v", id, err)
	}
	return token
}

func BenchmarkToken(b *testing.B) {
	for name, id := range map[string]string{"plain": "order-20260731-000042", "escaped": "order 2026.07.31:000042"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				mustToken(b, id)
			}
		})
	}
}
