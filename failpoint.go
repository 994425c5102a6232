package tallyman

import "github.com/tallyman-go/tallyman/internal/failpoint"

// failpointsEnabled is true in test builds alone (build tag failpoints).
const failpointsEnabled = failpoint.Enabled

// failAt is where a test build can be told to die or to wait.
func failAt(point, id string) { failpoint.Hit(point, id) }
