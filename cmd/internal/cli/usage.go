package cli

// Usage marks err as wrong usage, which ends a command with exit code 2, and
// leaves its text as it is.
func Usage(err error) error { return &usageError{err} }

type usageError struct{ err error }

func (e *usageError) Error() string   { return e.err.Error() }
func (e *usageError) Unwrap() []error { return []error{ErrUsage, e.err} }
