//go:build !failpoints

package tallyman

// failpointsEnabled is true in test builds alone (build tag failpoints).
const failpointsEnabled = false

// failpoint is where a test build can be told to die or to wait.
func failpoint(string, string) {}
