package main

import (
	"os"
	"testing"
)

// A worker that the test starts is the test's own binary.
func TestMain(m *testing.M) {
	if os.Getenv(serverEnv) != "" {
		exit(work())
	}
	os.Exit(m.Run())
}

func TestArchive(t *testing.T) {
	t.Parallel()
	s := story{files: 2_000, kills: 7} // the program itself packs 10,000
	got, err := s.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got.Files != s.files || got.Kills != s.kills || len(got.Resumed) != s.kills || got.Repeated > s.kills*every {
		t.Errorf("got %+v", got)
	}
	last := uint64(0)
	for _, at := range got.Resumed {
		if at <= last || at%every != 0 {
			t.Errorf("resumed at %v, want rising offsets that were saved", got.Resumed)
		}
		last = at
	}
	t.Logf("%+v", got)
}
