package demo

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/internal/plural"
)

// Books are the account of a run; the package documentation says what counts as what.
type Books struct {
	Files      int      `json:"files"`
	Submitted  int      `json:"submitted"`
	Absorbed   int      `json:"absorbed"`
	Completed  int      `json:"completed"`
	Parked     int      `json:"parked"`
	Takeovers  int      `json:"takeovers"`
	Refused    int      `json:"refused"`
	Executions int      `json:"executions"`
	Receipts   int      `json:"receipts"`
	Lost       int      `json:"lost"`
	Doubled    int      `json:"doubled"`
	Verified   int      `json:"verified"`
	Kills      int      `json:"kills"`
	Freezes    int      `json:"freezes"`
	Skipped    []string `json:"skipped"` // files that were left out, each with the reason
	Notes      []string `json:"notes"`   // what went other than it should, or a file that changed
	Seconds    float64  `json:"seconds"`
	Balanced   bool     `json:"balanced"`
}

func (b *Books) note(format string, args ...any) {
	b.Notes = append(b.Notes, fmt.Sprintf(format, args...))
}

// tally fills in what follows from the receipts seen: what was lost or doubled.
// Reported is how often workers reported each command as completed.
func (b *Books) tally(orders []order, w *watch, reported map[string]int) {
	for _, o := range orders {
		revisions := len(w.receipts[o.Path])
		b.Receipts += revisions
		why, parked := w.parked[o.Path]
		switch {
		case revisions > 1 || reported[o.Path] > 1:
			b.Doubled++
			b.note("%s: %s stored, %d reported", o.Path, plural.Count(revisions, "receipt"), reported[o.Path])
		case revisions == 1:
		case parked:
			b.Parked++
			b.note("%s: parked: %s", o.Path, why)
		default:
			b.Lost++
			b.note("%s: no receipt", o.Path)
		}
	}
}

// verify reads every stored object back, unpacks it and compares it with its
// file: as it was submitted, which counts, and as it is now, which is noted.
func (b *Books) verify(ctx context.Context, p *plan, root *os.Root, objects jetstream.ObjectStore, parked map[string]string) error {
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(2*maxFile))
	if err != nil {
		return err
	}
	defer decoder.Close()
	for _, o := range p.orders {
		if _, ok := parked[o.Path]; ok {
			continue
		}
		packed, err := objects.GetBytes(ctx, o.Path)
		if errors.Is(err, jetstream.ErrObjectNotFound) {
			b.note("%s: no packed file is stored", o.Path)
			continue
		}
		if err != nil {
			return fmt.Errorf("verify %s: %w", o.Path, err)
		}
		body, err := decoder.DecodeAll(packed, nil)
		if err != nil {
			b.note("%s: the packed file does not unpack: %v", o.Path, err)
			continue
		}
		if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != o.SHA256 {
			b.note("%s: the packed file differs from what was submitted", o.Path)
			continue
		}
		b.Verified++
		if now, err := look(root, o.Path); err != nil || now.SHA256 != o.SHA256 {
			b.note("%s: packed as submitted; the file has changed or vanished since", o.Path)
		}
	}
	return nil
}

// judge returns nil if the books hold what the demo promises.
func (b *Books) judge(copies int) error {
	var wrong []string
	expect := func(what string, got, want int) {
		if got != want {
			wrong = append(wrong, fmt.Sprintf("%s is %d, expected %d", what, got, want))
		}
	}
	packed := b.Files - b.Parked
	expect("submitted", b.Submitted, b.Files+copies)
	expect("absorbed", b.Absorbed, copies)
	expect("completed", b.Completed, packed)
	expect("receipts", b.Receipts, packed)
	expect("lost", b.Lost, 0)
	expect("doubled", b.Doubled, 0)
	expect("verified", b.Verified, packed)
	if !b.Balanced {
		wrong = append(wrong, "a sequence of the stream is not accounted for")
	}
	switch {
	case len(wrong) > 0:
		return fmt.Errorf("%w: %s", cli.ErrUnbalanced, strings.Join(wrong, "; "))
	case b.Parked > 0:
		return fmt.Errorf("the books balance, but %s changed or vanished before being packed: %w; run the demo on a quiet directory", plural.Count(b.Parked, "file"), tallyman.ErrParked)
	}
	return nil
}

// print shows the books to a person, with the judgement on them.
func (b *Books) print(to io.Writer, judged error) error {
	const shown = 20
	for _, list := range []struct {
		title string
		lines []string
	}{{"left out", b.Skipped}, {"notes", b.Notes}} {
		lines := slices.Clone(list.lines)
		if n := len(lines) - shown; n > 0 {
			lines = append(lines[:shown], fmt.Sprintf("and %d more; --json lists all", n))
		}
		for i, line := range lines {
			if i == 0 {
				fmt.Fprintf(to, "%s:\n", list.title)
			}
			fmt.Fprintf(to, "  %s\n", line)
		}
	}
	verdict := "the books balance: every file has exactly one receipt, and its packed copy is right"
	switch {
	case errors.Is(judged, cli.ErrUnbalanced):
		verdict = "THE BOOKS DO NOT BALANCE"
	case judged != nil:
		verdict = "the books balance, with files parked"
	}
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range []struct {
		name string
		n    int
		what string
	}{
		{"files", b.Files, ""},
		{"submitted", b.Submitted, "repeats included"},
		{"absorbed", b.Absorbed, "repeats that changed nothing"},
		{"executions", b.Executions, fmt.Sprintf("after %s and %s", plural.Count(b.Kills, "kill"), plural.Count(b.Freezes, "freeze"))},
		{"takeovers", b.Takeovers, "went on where another worker ended"},
		{"refused", b.Refused, "late results of workers that had lost their lease"},
		{"completed", b.Completed, ""},
		{"receipts", b.Receipts, ""},
		{"parked", b.Parked, "for a human"},
		{"lost", b.Lost, ""},
		{"doubled", b.Doubled, ""},
		{"verified", b.Verified, "unpacked and compared by SHA-256"},
	} {
		fmt.Fprintf(table, "%s\t%d\t\t%s\n", row.name, row.n, row.what)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(to, "%s (%.1f s)\n", verdict, b.Seconds)
	return err
}
