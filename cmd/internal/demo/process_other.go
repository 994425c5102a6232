//go:build !unix

package demo

import (
	"errors"
	"os"
	"syscall"
)

func attr() *syscall.SysProcAttr { return nil }

func freeze(*os.Process) error { return errors.ErrUnsupported }
func thaw(*os.Process) error   { return errors.ErrUnsupported }
