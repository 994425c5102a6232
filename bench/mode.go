package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// mode is one of the things that this program measures.
type mode struct {
	n, rounds int // defaults
	names     []string
	refuses   func(with layout) error // what does not go with it; nil for nothing
	run       func(ctx context.Context, l load, with layout, progress func(string)) (tables, error)
}

// tables are what a run has to show, in JSON as they are.
type tables interface {
	writeMarkdown(io.Writer) error
}

// pathsMode measures the paths other than the straight one.
func pathsMode() mode {
	return mode{n: 20_000, rounds: 5, names: pathNames(),
		run: func(ctx context.Context, l load, with layout, progress func(string)) (tables, error) {
			return measurePaths(ctx, l, with, progress)
		}}
}

// flatMode measures what a command costs beside ever more of everything.
func flatMode() mode {
	return mode{n: 200_000, rounds: 3, names: axes(),
		run: func(ctx context.Context, l load, with layout, progress func(string)) (tables, error) {
			return measureFlat(ctx, l, with, progress)
		}}
}

// raceMode measures the contestants on the straight way.
func raceMode() mode {
	m := mode{n: 100_000, rounds: 5}
	for _, sc := range scenarios {
		m.names = append(m.names, sc.name)
	}
	return m
}

// syncMode measures the contestants on servers that flush before they answer,
// which takes each of them longer.
func syncMode() mode {
	m := raceMode()
	m.n = 20_000
	return m
}

// chooseMode returns what the flags ask for.
func chooseMode(paths, flat, capacity, sync bool) (mode, error) {
	n := 0
	for _, given := range []bool{paths, flat, capacity} {
		if given {
			n++
		}
	}
	switch {
	case n > 1:
		return mode{}, errors.New("--paths, --flat and --capacity are runs of their own")
	case paths:
		return pathsMode(), nil
	case flat:
		return flatMode(), nil
	case capacity:
		return capacityMode(), nil
	case sync:
		return syncMode(), nil
	}
	return raceMode(), nil
}

// takes fails if the mode cannot do what the layout asks for.
func (m mode) takes(with layout) error {
	if m.refuses == nil {
		return nil
	}
	return m.refuses(with)
}

// knows fails if the load asks for a scenario that is not part of the mode.
func (m mode) knows(l load) error {
	if l.Scenario != "" && !slices.Contains(m.names, l.Scenario) {
		return fmt.Errorf("no scenario %q; there are: %s", l.Scenario, strings.Join(m.names, ", "))
	}
	return nil
}

// arrange returns the contestants with the assets and servers that a layout asks
// for, without those that have none such unless they are named: then it fails.
func arrange(cs []Contestant, named bool, with layout) ([]Contestant, error) {
	if with.replicas != 1 && with.replicas != clusterSize {
		return nil, fmt.Errorf("--replicas is 1 or %d", clusterSize)
	}
	var able []Contestant
	for _, c := range cs {
		c, err := with.on(c)
		if err != nil && named {
			return nil, err
		}
		if err == nil {
			able = append(able, c)
		}
	}
	return able, nil
}

// on returns a contestant as the layout wants it.
func (l layout) on(c Contestant) (Contestant, error) {
	if on, ok := c.(onJetStream); ok {
		on.layout = l
		return on, nil
	}
	if l.replicas > 1 {
		return nil, fmt.Errorf("%s cannot be measured with replicas", c.Name())
	}
	if !l.sync {
		return c, nil
	}
	switch c := c.(type) {
	case river: // it always is
		return c, nil
	case asynqPeer:
		c.sync = true
		return c, nil
	}
	return nil, fmt.Errorf("%s cannot be measured with --sync", c.Name())
}
