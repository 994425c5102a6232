// Package cli is what the three commands share: common flags, the connection,
// output conventions and exit codes. Data goes to stdout, logs to stderr.
package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"reflect"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/alecthomas/kong"
	"github.com/nats-io/nats.go"
	"github.com/synadia-io/orbit.go/natscontext"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/desk"
	"github.com/tallyman-go/tallyman/kvstate"
)

// Exit codes, the same for every command.
const (
	ExitDone       = 0
	ExitFailed     = 1
	ExitUsage      = 2
	ExitConflict   = 3
	ExitParked     = 4
	ExitTimeout    = 5
	ExitUnbalanced = 6
)

// ErrUnbalanced ends a command with exit code 6.
var ErrUnbalanced = errors.New("the books do not balance")

// ErrUsage ends a command with exit code 2: the request was wrong, and asking
// again would not help.
var ErrUsage = errors.New("wrong usage")

// Common holds the flags that every command has.
type Common struct {
	Pool      string `help:"Name of the pool." env:"TALLYMAN_POOL" default:"main" placeholder:"NAME" group:"common"`
	Server    string `help:"URLs of the NATS servers, comma-separated${server}." env:"NATS_URL" placeholder:"URL" group:"common"`
	Context   string `help:"Name of a nats CLI context to connect with." env:"NATS_CONTEXT" placeholder:"NAME" group:"common"`
	Creds     string `help:"File with user credentials." env:"NATS_CREDS" placeholder:"FILE" group:"common"`
	Nkey      string `help:"File with an nkey seed." env:"NATS_NKEY" placeholder:"FILE" group:"common"`
	TLSCA     string `name:"tls-ca" help:"File with the certificates of authorities to trust." env:"NATS_CA" placeholder:"FILE" group:"common"`
	TLSCert   string `name:"tls-cert" help:"File with the client certificate." env:"NATS_CERT" placeholder:"FILE" group:"common"`
	TLSKey    string `name:"tls-key" help:"File with the client key." env:"NATS_KEY" placeholder:"FILE" group:"common"`
	LogFormat string `help:"Format of the logs on stderr." enum:"text,json" default:"text" placeholder:"F" group:"common"`
	LogLevel  string `help:"Least level that is logged." enum:"debug,info,warn,error" default:"info" placeholder:"L" group:"common"`
}

// Logger returns the logger that the flags ask for. It writes to stderr.
func (c *Common) Logger() *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.LogLevel)) // the parser admits valid levels alone
	options := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, options))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, options))
}

// Configured reports whether a server was named in any way.
func (c *Common) Configured() bool { return c.Server != "" || c.Context != "" }

// Connect connects as the flags say, under a name that the server shows.
func (c *Common) Connect(name string) (*nats.Conn, error) {
	if err := c.files(); err != nil {
		return nil, err
	}
	options := []nats.Option{nats.Name(name), nats.ErrorHandler(tell)}
	if c.Context != "" {
		nc, _, err := natscontext.Connect(c.Context, append(tallyman.ConnectOptions(), options...)...)
		if err != nil {
			return nil, fmt.Errorf("connect with context %q: %w; nats context ls lists those that there are", c.Context, err)
		}
		return nc, nil
	}
	url := c.Server
	if url == "" {
		url = nats.DefaultURL
	}
	if c.Creds != "" {
		options = append(options, nats.UserCredentials(c.Creds))
	}
	if c.Nkey != "" {
		o, err := nats.NkeyOptionFromSeed(c.Nkey)
		if err != nil {
			return nil, fmt.Errorf("%w: --nkey %s: %w", ErrUsage, c.Nkey, err)
		}
		options = append(options, o)
	}
	if c.TLSCA != "" {
		options = append(options, nats.RootCAs(c.TLSCA))
	}
	if c.TLSCert != "" {
		options = append(options, nats.ClientCert(c.TLSCert, c.TLSKey))
	}
	nc, err := tallyman.Connect(url, options...)
	if errors.Is(err, nats.ErrAuthorization) {
		return nil, fmt.Errorf("%w; name a user with --creds, --nkey or --context, or in the URL of --server", err)
	}
	if err != nil {
		return nil, fmt.Errorf("%w; is a server running there? name another with --server or NATS_URL", err)
	}
	return nc, nil
}

// tell prints what the server reports outside of any request. What it denies is
// named by the error of the request.
func tell(_ *nats.Conn, _ *nats.Subscription, err error) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		fmt.Fprintln(os.Stderr, err)
	}
}

// UntilDenied returns a context that ends, with a cause that wraps
// tallyman.ErrDenied and names the subject, once the server denies this
// connection anything. It reaches a client as an event of the connection alone,
// and whoever asked as a timeout. Call the function when done.
func UntilDenied(ctx context.Context, nc *nats.Conn) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	before := nc.ErrorHandler()
	nc.SetErrorHandler(func(nc *nats.Conn, sub *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrPermissionViolation) {
			cancel(fmt.Errorf("%w: %s", tallyman.ErrDenied, strings.TrimPrefix(err.Error(), "nats: ")))
		}
		if before != nil {
			before(nc, sub, err)
		}
	})
	return ctx, func() { cancel(nil) }
}

// files checks the files that the flags name, since the client's errors would
// look like those of a server that cannot be reached.
func (c *Common) files() error {
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return fmt.Errorf("%w: --tls-cert and --tls-key go together", ErrUsage)
	}
	for _, f := range []struct{ flag, name string }{
		{"--creds", c.Creds}, {"--nkey", c.Nkey}, {"--tls-ca", c.TLSCA}, {"--tls-cert", c.TLSCert}, {"--tls-key", c.TLSKey},
	} {
		if f.name == "" {
			continue
		}
		if _, err := os.ReadFile(f.name); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrUsage, f.flag, err)
		}
	}
	return nil
}

// OpenPool connects and opens the pool. Close both when done.
func (c *Common) OpenPool(ctx context.Context, name string) (*nats.Conn, *tallyman.Pool, error) {
	nc, err := c.Connect(name)
	if err != nil {
		return nil, nil, err
	}
	p, err := c.Open(ctx, nc)
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return nc, p, nil
}

// tellAfter is how long opening a pool may take before stderr says so.
const tellAfter = 2 * time.Second

// Open opens the pool. That may take half a minute while the servers are not
// ready: it tells why it waits.
func (c *Common) Open(ctx context.Context, nc *nats.Conn) (*tallyman.Pool, error) {
	waits := time.AfterFunc(tellAfter, func() {
		fmt.Fprintf(os.Stderr, "no answer yet about pool %s, asking for up to 30s; %s\n", c.Pool, jetStreamRemedy)
	})
	defer waits.Stop()
	return tallyman.Open(ctx, nc, c.Pool)
}

// Command is one subcommand: kong calls Run with what Main binds.
type Command interface {
	Run(ctx context.Context, common *Common, out *Out) error
}

// Out is where data goes.
type Out struct {
	io.Writer
}

// JSON prints one JSON object or line. What a terminal may act on is escaped,
// which leaves the value as it is.
func (o *Out) JSON(v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := o.Write(escape(b.Bytes()))
	return err
}

// Parser returns the parser of a command line, a struct of kong that embeds Common.
func Parser(name, description string, grammar any) (*kong.Kong, error) {
	return kong.New(grammar,
		kong.Name(name), kong.Description(description), kong.UsageOnError(),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, FlagsLast: true}), kong.Help(printHelp), kong.ValueFormatter(describe),
		kong.ExplicitGroups([]kong.Group{{Key: "common", Title: "Flags of every command:"}}),
		kong.TypeMapper(reflect.TypeFor[time.Duration](), kong.MapperFunc(mapDuration)),
		kong.Vars{
			"version": Version(), "server": fallbackServer(name),
			"states": words(kvstate.States()), "reasons": words(kvstate.Reasons()),
		},
	)
}

// Main parses args against grammar, a struct of kong that embeds Common, and
// runs the command that they name. Its context ends with the first SIGINT or
// SIGTERM. It returns the exit code.
func Main(name, description string, grammar any, common *Common, args []string) int {
	parser, err := Parser(name, description, grammar)
	if err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		return ExitUsage
	}
	parsed, err := parse(parser, args)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v (see %s --help)\n", name, err, selected(name, err))
		return ExitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	parsed.BindTo(ctx, (*context.Context)(nil))
	parsed.Bind(common, &Out{os.Stdout})
	if err := parsed.Run(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %s%s\n", name, Text(err), remedy(err))
		return Code(err)
	}
	return ExitDone
}

// Text returns what an error says, without the name of the package that said it.
func Text(err error) string {
	return strings.TrimPrefix(strings.TrimPrefix(err.Error(), "tallyman: "), "desk: ")
}

const jetStreamRemedy = "is JetStream switched on there (nats-server -js), and most of a cluster up?"

// remedy says what to do about an error of the server, which knows nothing of
// how it was started.
func remedy(err error) string {
	if errors.Is(err, tallyman.ErrUnavailable) {
		return "; " + jetStreamRemedy
	}
	return ""
}

// parse refuses arguments that are not UTF-8, which the parser would change: two
// ids would become one, and a payload another.
func parse(parser *kong.Kong, args []string) (*kong.Context, error) {
	for i, arg := range args {
		if !utf8.ValidString(arg) {
			return nil, fmt.Errorf("argument %d is not valid UTF-8: %.40q; a payload of other bytes can come from stdin or a file", i+1, arg)
		}
	}
	return parser.Parse(args)
}

// Code returns the exit code that an error stands for.
func Code(err error) int {
	switch {
	case err == nil:
		return ExitDone
	case errors.Is(err, ErrUnbalanced):
		return ExitUnbalanced
	case errors.Is(err, ErrUsage), errors.Is(err, tallyman.ErrInvalidID), errors.Is(err, tallyman.ErrInvalidName), errors.Is(err, desk.ErrAct):
		return ExitUsage
	case errors.Is(err, tallyman.ErrConflict), errors.Is(err, desk.ErrRefused):
		return ExitConflict
	case errors.Is(err, tallyman.ErrParked):
		return ExitParked
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, tallyman.ErrUnconfirmed):
		return ExitTimeout
	}
	return ExitFailed
}
