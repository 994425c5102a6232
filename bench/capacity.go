package main

import (
	"context"
	"errors"
)

func capacityNames() []string { return nil }

func capacityMode() mode {
	return mode{n: 50_000, rounds: 3, names: capacityNames(),
		run: func(context.Context, load, layout, func(string)) (tables, error) { return nil, errors.New("not yet") }}
}
