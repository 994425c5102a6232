package runner

import (
	"errors"
	"syscall"
)

// dieWithParent does nothing: macOS has no parent-death signal.
func dieWithParent(*syscall.SysProcAttr) {}

// awaitExit returns true when pid has exited, and leaves it to be reaped: as long
// as it is not, its group can be signalled without hitting a stranger. (waitid
// would also return when the program is merely stopped, so this is kqueue.)
// False means that the kernel cannot tell.
func awaitExit(pid int) bool {
	queue, err := syscall.Kqueue()
	if err != nil {
		return false
	}
	defer func() { _ = syscall.Close(queue) }()
	syscall.CloseOnExec(queue)
	change := []syscall.Kevent_t{{
		Ident: uint64(pid), Filter: syscall.EVFILT_PROC,
		Flags: syscall.EV_ADD | syscall.EV_ONESHOT, Fflags: syscall.NOTE_EXIT,
	}}
	events := make([]syscall.Kevent_t, 1)
	for {
		_, err := syscall.Kevent(queue, change, events, nil)
		if !errors.Is(err, syscall.EINTR) {
			return err == nil || errors.Is(err, syscall.ESRCH) // had exited before
		}
	}
}
