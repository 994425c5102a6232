//go:build !linux && !darwin

package runner

import (
	"context"
	"errors"
	"runtime"

	"github.com/tallyman-go/tallyman"
)

const execSupported = false

func (e *Exec) run(context.Context, *tallyman.Claim, saveFunc, ...string) (ending, error) {
	return ending{}, errors.New("runner: exec handlers need Linux or macOS, not " + runtime.GOOS + "; use an http handler, or a worker on another system")
}
