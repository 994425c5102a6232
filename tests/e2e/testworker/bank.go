//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/tallyman-go/tallyman"
)

// errFenced is the bank's refusal of a token that is older than one it has seen.
var errFenced = errors.New("the bank has seen a newer token")

// bank is an outside system that pays whatever it is told to, as often as it is
// told, but refuses whoever comes with an older token than it has seen. Its
// ledger is the lines "paid" and "seen" among the effects.
func (w *world) bank(id string, token uint64, do func(paid bool)) error {
	lock, err := os.OpenFile(w.effects.Name()+".bank", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }() // which unlocks
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	ledger, err := os.ReadFile(w.effects.Name())
	if err != nil {
		return err
	}
	paid := false
	for _, l := range strings.Split(string(ledger), "\n") {
		f := strings.Fields(l)
		if len(f) != 6 || f[1] != id || f[0] != "paid" && f[0] != "seen" {
			continue
		}
		paid = paid || f[0] == "paid"
		if seen, err := strconv.ParseUint(f[3], 10, 64); err == nil && seen > token {
			return fmt.Errorf("%w: %d, this is %d", errFenced, seen, token)
		}
	}
	do(paid)
	return nil
}

// pay pays once it has announced that.
func (w *world) pay(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
	token, err := c.Prepare(ctx, []byte("pay "+c.ID()))
	if err != nil {
		return tallyman.Result{}, err
	}
	if err := w.bank(c.ID(), token, func(bool) { w.write("paid", c.ID(), c.Attempt(), token, "-") }); err != nil {
		return tallyman.Result{}, err
	}
	w.effect(c, "paid")
	return echo(c)
}

// confirmPay asks the bank, which from then on refuses older tokens.
func (w *world) confirmPay(_ context.Context, c *tallyman.Claim, intent []byte) (tallyman.Finding, tallyman.Result, error) {
	if string(intent) != "pay "+c.ID() {
		return tallyman.Unknown, tallyman.Result{}, fmt.Errorf("the intent of %s is %q", c.ID(), intent)
	}
	finding := tallyman.NotDone
	err := w.bank(c.ID(), c.Token(), func(paid bool) {
		w.write("seen", c.ID(), c.Attempt(), c.Token(), "-")
		if paid {
			finding = tallyman.Done
		}
	})
	if err != nil || finding == tallyman.NotDone {
		return finding, tallyman.Result{}, err
	}
	w.effect(c, "confirmed")
	result, err := echo(c)
	return finding, result, err
}
