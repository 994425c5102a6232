package outbox_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
)

// link leads to a database and can be cut, so that every statement fails, or
// frozen, so that every statement waits.
type link struct {
	db      *sql.DB
	down    atomic.Bool
	refused atomic.Int64
	running sync.RWMutex // held by statements for reading

	driver driver.Driver
	dsn    string
}

var errCut = errors.New("the link is cut")

// cut returns a second handle on a database, over a link.
func cut(t testing.TB, db *database) *link {
	t.Helper()
	l := &link{driver: db.Driver(), dsn: db.dsn}
	l.db = sql.OpenDB(l)
	t.Cleanup(func() { _ = l.db.Close() }) // nothing is lost with it
	return l
}

// freeze makes statements wait until thaw is called, and waits for those under
// way. Like a process that is stopped, they do not look at their contexts.
func (l *link) freeze() (thaw func()) {
	l.running.Lock()
	return l.running.Unlock
}

func (l *link) check() error {
	if l.down.Load() {
		l.refused.Add(1)
		return errCut
	}
	return nil
}

func (l *link) Driver() driver.Driver { return l.driver }

func (l *link) Connect(context.Context) (driver.Conn, error) {
	l.running.RLock()
	defer l.running.RUnlock()
	if err := l.check(); err != nil {
		return nil, err
	}
	c, err := l.driver.Open(l.dsn)
	if err != nil {
		return nil, err
	}
	return &linkConn{Conn: c, link: l}, nil
}

type linkConn struct {
	driver.Conn
	link *link
}

func (c *linkConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	c.link.running.RLock()
	defer c.link.running.RUnlock()
	if err := c.link.check(); err != nil {
		return nil, err
	}
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
}

func (c *linkConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	c.link.running.RLock()
	defer c.link.running.RUnlock()
	if err := c.link.check(); err != nil {
		return nil, err
	}
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
}

func (c *linkConn) CheckNamedValue(v *driver.NamedValue) error {
	if checker, ok := c.Conn.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(v)
	}
	return driver.ErrSkip
}
