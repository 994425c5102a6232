package runner

import (
	"errors"
	"syscall"
	"unsafe"
)

// dieWithParent has the kernel kill the program when the worker is killed.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// awaitExit returns true when pid has exited, and leaves it to be reaped: as long
// as it is not, its group can be signalled without hitting a stranger. False means
// that the kernel cannot tell.
func awaitExit(pid int) bool {
	const byPID = 1 // P_PID
	var info [128]byte
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, byPID, uintptr(pid),
			uintptr(unsafe.Pointer(&info)), syscall.WEXITED|syscall.WNOWAIT, 0, 0)
		if !errors.Is(errno, syscall.EINTR) {
			return errno == 0
		}
	}
}
