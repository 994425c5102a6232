package main

import (
	"errors"
	"fmt"
	"os/user"
	"time"

	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/desk"
)

// actFlags say who acts and why; the record's trail keeps both.
type actFlags struct {
	As  string `help:"Who acts, for the record (default: the user of the operating system)." env:"TALLYMAN_AS" placeholder:"NAME"`
	Why string `help:"Why, for the record." placeholder:"TEXT"`
}

func (f *actFlags) act() (desk.Act, error) {
	who := f.As
	if who == "" {
		if u, err := user.Current(); err == nil {
			who = u.Username
		}
	}
	if who == "" {
		return desk.Act{}, cli.Usage(errors.New("the user of the operating system has no name; say with --as who acts"))
	}
	return desk.Act{By: who, Why: f.Why}, nil
}

// filterFlags select parked commands.
type filterFlags struct {
	Reason    string        `help:"Only those parked for this reason: ${reasons}." placeholder:"R"`
	Kind      string        `help:"Only those of this kind." placeholder:"K"`
	OlderThan time.Duration `help:"Only those parked for at least this long." placeholder:"D"`
	NewerThan time.Duration `help:"Only those parked for less than this." placeholder:"D"`
}

func (f *filterFlags) set() bool { return *f != filterFlags{} }

func (f *filterFlags) filter() (desk.Filter, error) {
	if err := knownReason(f.Reason); err != nil {
		return desk.Filter{}, err
	}
	if f.OlderThan < 0 || f.NewerThan < 0 {
		return desk.Filter{}, fmt.Errorf("%w: --older-than and --newer-than take a duration above 0, such as 24h", cli.ErrUsage)
	}
	return desk.Filter{Reason: reason(f.Reason), Kind: f.Kind, OlderThan: f.OlderThan, NewerThan: f.NewerThan}, nil
}
