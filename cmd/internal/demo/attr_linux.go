package demo

import "syscall"

// attr keeps an interrupt at the terminal from the workers, which the demo
// ends in order, and lets them die with the demo, even while they are frozen.
func attr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
