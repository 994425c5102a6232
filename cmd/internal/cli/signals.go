package cli

import (
	"log/slog"
	"os"
)

// WatchSignals is an actor of a command that ends in order: it calls stop on the
// first signal, and ends the process at once on the second, whereupon others
// take over what is under way after its lease. It returns once over is closed.
func WatchSignals(signals <-chan os.Signal, over <-chan struct{}, stop func(os.Signal), log *slog.Logger) error {
	for first := true; ; first = false {
		select {
		case <-over:
			return nil
		case s := <-signals:
			if !first {
				log.Error("second signal, ending at once", "signal", s.String())
				os.Exit(ExitFailed)
			}
			stop(s)
		}
	}
}
