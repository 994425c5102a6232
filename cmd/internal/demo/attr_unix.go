//go:build unix && !linux

package demo

import "syscall"

// attr keeps an interrupt at the terminal from the workers, which the demo
// ends in order.
func attr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
