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
	run       func(ctx context.Context, l load, replicas int, progress func(string)) (tables, error)
}

// tables are what a run has to show.
type tables interface {
	writeMarkdown(io.Writer) error
	writeJSON(io.Writer) error
}

// pathsMode measures the paths other than the straight one.
func pathsMode() mode {
	return mode{n: 20_000, rounds: 5, names: pathNames(),
		run: func(ctx context.Context, l load, replicas int, progress func(string)) (tables, error) {
			return measurePaths(ctx, l, replicas, progress)
		}}
}

// flatMode measures what a command costs beside ever more of everything.
func flatMode() mode {
	return mode{n: 50_000, rounds: 3, names: axes(),
		run: func(ctx context.Context, l load, replicas int, progress func(string)) (tables, error) {
			return measureFlat(ctx, l, replicas, progress)
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

// chooseMode returns what the flags ask for.
func chooseMode(paths, flat bool) (mode, error) {
	switch {
	case paths && flat:
		return mode{}, errors.New("--paths and --flat are two runs")
	case paths:
		return pathsMode(), nil
	case flat:
		return flatMode(), nil
	}
	return raceMode(), nil
}

// knows fails if the load asks for a scenario that is not part of the mode.
func (m mode) knows(l load) error {
	if l.Scenario != "" && !slices.Contains(m.names, l.Scenario) {
		return fmt.Errorf("no scenario %q; there are: %s", l.Scenario, strings.Join(m.names, ", "))
	}
	return nil
}

// onCluster returns those contestants with assets of so many replicas, without
// the peers unless only names them: then it fails.
func onCluster(cs []Contestant, only string, replicas int) ([]Contestant, error) {
	if replicas == 1 {
		return cs, nil
	}
	if replicas != clusterSize {
		return nil, fmt.Errorf("--replicas is 1 or %d", clusterSize)
	}
	var able []Contestant
	for _, c := range cs {
		on, ok := c.(onJetStream)
		if !ok && only != "" {
			return nil, fmt.Errorf("%s cannot be measured with replicas", c.Name())
		}
		if ok {
			on.layout.replicas = replicas
			able = append(able, on)
		}
	}
	return able, nil
}
