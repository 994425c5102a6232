// Package failpoint is where a test build (build tag failpoints) can be told to
// die or to freeze. In every other build it is empty.
//
// TALLYMAN_FAILPOINT holds
//
//	<point>=<kill|stop>:<glob of ids>[:<file>]
//
// With a file, the point acts only once: whoever creates the file first dies,
// so that a restarted process passes. A value that cannot be read is a panic.
//
// Hit is safe for concurrent use.
package failpoint
