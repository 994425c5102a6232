package tallyman

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// Connect connects to the servers of a comma-separated list of URLs with the
// options of ConnectOptions. Further options come after these.
func Connect(urls string, options ...nats.Option) (*nats.Conn, error) {
	nc, err := nats.Connect(urls, append(ConnectOptions(), options...)...)
	var bad *url.Error
	if errors.As(err, &bad) { // its text holds the URL
		return nil, fmt.Errorf("tallyman: connect to %s: not a valid URL; write special characters of user and password as %%XX", redact(urls))
	}
	if err != nil {
		return nil, fmt.Errorf("tallyman: connect to %s: %w", redact(urls), err)
	}
	return nc, nil
}

// ConnectOptions returns the options that a pool wants of a connection:
//
//   - It reconnects for ever.
//   - It keeps nothing in a buffer meanwhile, since an ack or write that is sent
//     minutes later may hit what is somebody else's by then.
//   - It gives up a server that has been silent for 15 s, half of the default
//     lease. By default that would take 6 minutes for a connection that
//     died without a word.
func ConnectOptions() []nats.Option {
	return []nats.Option{
		nats.MaxReconnects(-1),
		nats.ReconnectBufSize(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(100*time.Millisecond, 500*time.Millisecond),
		nats.PingInterval(5 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.PermissionErrOnSubscribe(true),
	}
}

// redact spells URLs of servers without user, password and token.
func redact(urls string) string {
	each := strings.Split(urls, ",")
	for i, u := range each {
		at := strings.LastIndexByte(u, '@')
		if at < 0 {
			continue
		}
		begin := 0
		if scheme := strings.Index(u[:at], "://"); scheme >= 0 {
			begin = scheme + len("://")
		}
		each[i] = u[:begin] + "xxxxx" + u[at:]
	}
	return strings.Join(each, ",")
}
