package desk

import "sync"

// window bounds what is under way, in commands and in bytes. One goroutine
// enters; any may leave.
type window struct {
	mu    sync.Mutex
	moved *sync.Cond
	n     int
	bytes int
}

const (
	windowCommands = 256
	windowBytes    = 32 << 20
)

func newWindow() *window {
	w := &window{}
	w.moved = sync.NewCond(&w.mu)
	return w
}

// enter waits for room. Something larger than the whole window enters alone.
func (w *window) enter(size int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.n >= windowCommands || w.n > 0 && w.bytes+size > windowBytes {
		w.moved.Wait()
	}
	w.n++
	w.bytes += size
}

func (w *window) leave(size int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.n--
	w.bytes -= size
	w.moved.Broadcast()
}

// empty waits until nothing is under way.
func (w *window) empty() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.n > 0 {
		w.moved.Wait()
	}
}
