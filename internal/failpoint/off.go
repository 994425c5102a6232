//go:build !failpoints

package failpoint

// Enabled is true in test builds alone (build tag failpoints).
const Enabled = false

// Hit is where a test build can be told to die or to wait.
func Hit(string, string) {}
