package outbox

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// BenchmarkScan measures what a relay's looks cost over a backlog: so many
// published rows, as many that are due, and as many with keys. They must not
// grow with it. TALLYMAN_BENCH_ROWS=1000000 adds a backlog of that size.
func BenchmarkScan(b *testing.B) {
	sizes := []int{10_000}
	if text := os.Getenv("TALLYMAN_BENCH_ROWS"); text != "" {
		var n int
		if _, err := fmt.Sscan(text, &n); err != nil {
			b.Fatalf("TALLYMAN_BENCH_ROWS: %v", err)
		}
		sizes = append(sizes, n)
	}
	for _, d := range []Dialect{SQLite, Postgres} {
		for _, size := range sizes {
			b.Run(fmt.Sprintf("%s/%d", d, size), func(b *testing.B) {
				db := backlogOf(b, d, size)
				r := newRows(db, d, "bench", time.Hour)
				b.Run("claim 10 rows", func(b *testing.B) {
					for b.Loop() {
						claimed, err := r.due(b.Context(), 10)
						if err != nil || len(claimed) != 10 {
							// What was claimed before is put back, off the clock.
							b.StopTimer()
							if _, err := db.ExecContext(b.Context(), `UPDATE tallyman_outbox SET state = 'pending', owner = NULL, available_at = `+spell("{after -1000000}", formsOf(d))+` WHERE state = 'sending'`); err != nil {
								b.Fatal(err)
							}
							b.StartTimer()
						}
					}
				})
				b.Run("first rows of 100 keys", func(b *testing.B) {
					for b.Loop() {
						if seqs, _, err := r.heads(b.Context(), "", 200); err != nil || len(seqs) != 100 {
							b.Fatalf("%d rows, %v", len(seqs), err)
						}
					}
				})
				b.Run("unsettled rows", func(b *testing.B) {
					for b.Loop() {
						if seqs, _, err := r.unsettled(b.Context(), 0, 100); err != nil || len(seqs) != 100 {
							b.Fatalf("%d rows, %v", len(seqs), err)
						}
					}
				})
				b.Run("oldest row", func(b *testing.B) {
					for b.Loop() {
						var age int64
						if err := db.QueryRowContext(b.Context(), oldestOpen.in(d)).Scan(&age); err != nil {
							b.Fatal(err)
						}
					}
				})
			})
		}
	}
}

func formsOf(d Dialect) []form {
	if d == SQLite {
		return sqliteForms
	}
	return postgresForms
}
