package runner

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/tallyman-go/tallyman"
)

const (
	// maxCheckpointHeader keeps the header below what common servers accept for one line.
	maxCheckpointHeader = 8 << 10
	// maxErrorBody is how much of an error's body is read, to keep its tail.
	maxErrorBody = 64 << 10
	// maxRetryAfter bounds what an answer may ask for.
	maxRetryAfter = time.Hour
)

// HTTP handles a command by one POST to an endpoint. docs/handlers.md
// describes the request and what each status means.
type HTTP struct {
	// URL is where commands are posted. Required.
	URL string
	// Headers are added to each request. Those that describe the command win
	// over them, except Content-Type if the producer stated one.
	Headers map[string]string
	// MaxResult is the largest result in bytes. Default DefaultMaxResult.
	MaxResult int
	// Transport sends the requests; nil means one shared by the process.
	Transport http.RoundTripper
}

// NewTransport returns a transport like the one that is shared by HTTP
// handlers without their own: keep-alive, up to 64 idle connections per host,
// 10 s to connect. The time for an answer is bounded by the route alone.
func NewTransport() *http.Transport {
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		ForceAttemptHTTP2:   true,
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConns:        256,
		MaxIdleConnsPerHost: 64,
		// Some servers close idle connections after 5 s (Node.js). Being
		// earlier avoids attempts that fail on a connection about to close.
		IdleConnTimeout:        4 * time.Second,
		MaxResponseHeaderBytes: 256 << 10,
	}
}

var sharedTransport = NewTransport()

// Handle posts the command once. It returns when ctx ends.
func (h *HTTP) Handle(ctx context.Context, claim *tallyman.Claim) (tallyman.Result, error) {
	req, err := h.request(ctx, claim)
	if err != nil {
		return tallyman.Result{}, err
	}
	result, _, err := h.exchange(ctx, req)
	return result, err
}

// exchange sends the request and reads the answer.
func (h *HTTP) exchange(ctx context.Context, req *http.Request) (tallyman.Result, http.Header, error) {
	client := http.Client{
		Transport: h.Transport,
		// Following would repeat the POST, or turn it into a GET.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if client.Transport == nil {
		client.Transport = sharedTransport
	}
	resp, err := client.Do(req)
	if err != nil {
		return tallyman.Result{}, nil, failure(ctx, req.URL, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return tallyman.Result{}, nil, refusal(ctx, req.URL, resp)
	}
	limit := h.MaxResult
	if limit <= 0 {
		limit = DefaultMaxResult
	}
	body, err := readAtMost(resp.Body, limit)
	if err != nil {
		return tallyman.Result{}, nil, failure(ctx, req.URL, err)
	}
	return tallyman.Result{Body: body, ContentType: resp.Header.Get("Content-Type")}, resp.Header, nil
}

func (h *HTTP) request(ctx context.Context, claim *tallyman.Claim) (*http.Request, error) {
	u, err := parseURL(h.URL)
	if err != nil {
		return nil, fmt.Errorf("runner: HTTP.URL is not usable: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(claim.Payload()))
	if err != nil {
		return nil, fmt.Errorf("runner: POST %s: %w", place(u), err)
	}
	for name, value := range h.Headers {
		req.Header.Set(name, value)
	}
	if ct := claim.ContentType(); ct != "" {
		req.Header.Set("Content-Type", headerText(ct))
	} else if req.Header.Get("Content-Type") == "" {
		req.Header.Set("Content-Type", "application/octet-stream")
	}
	// In lower case, which is the same header to every server: net/http sends
	// a request again by itself if it finds "Idempotency-Key" among its
	// headers. Another delivery is the pool's decision, with an attempt more.
	req.Header["idempotency-key"] = []string{headerValue(claim.ID())}
	req.Header.Set("Tallyman-Id", headerValue(claim.ID()))
	req.Header.Set("Tallyman-Kind", headerValue(claim.Kind()))
	req.Header.Set("Tallyman-Queue", headerValue(claim.Queue()))
	req.Header.Set("Tallyman-Attempt", strconv.Itoa(claim.Attempt()))
	req.Header.Set("Tallyman-Token", strconv.FormatUint(claim.Token(), 10))
	req.Header.Set("Tallyman-Offset", strconv.FormatUint(claim.Offset(), 10))
	if checkpoint := claim.Checkpoint(); len(checkpoint) > 0 {
		if n := base64.StdEncoding.EncodedLen(len(checkpoint)); n < maxCheckpointHeader {
			req.Header.Set("Tallyman-Checkpoint", base64.StdEncoding.EncodeToString(checkpoint))
		} else {
			req.Header.Set("Tallyman-Checkpoint-Omitted", strconv.Itoa(len(checkpoint)))
		}
	}
	return req, nil
}

// failure describes an exchange without a usable answer.
func failure(ctx context.Context, u *url.URL, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("runner: POST %s was stopped: %w", place(u), cause)
	}
	// Its text would repeat the URL, with whatever secret the query holds.
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	return fmt.Errorf("runner: POST %s: %w", place(u), err)
}

// refusal turns an answer outside 2xx into an error with its verdict.
func refusal(ctx context.Context, u *url.URL, resp *http.Response) error {
	var body tail
	_, _ = io.Copy(&body, io.LimitReader(resp.Body, maxErrorBody))
	if cause := context.Cause(ctx); cause != nil {
		return failure(ctx, u, cause)
	}
	err := fmt.Errorf("runner: POST %s: %d %s%s", place(u), resp.StatusCode, http.StatusText(resp.StatusCode), told(body.String()))
	switch code := resp.StatusCode; {
	case code >= 300 && code <= 399:
		to := ""
		if l, e := resp.Location(); e == nil {
			to = " to " + place(l)
		}
		return tallyman.Reject(fmt.Errorf("runner: POST %s: %d redirects%s, which is not followed for a POST; correct the URL in the pool file", place(u), code, to))
	case code == http.StatusTooManyRequests, code == http.StatusServiceUnavailable:
		if d, ok := retryAfter(resp.Header.Get("Retry-After"), time.Now()); ok {
			return tallyman.RetryAfter(d, err)
		}
		return err
	case code == http.StatusRequestTimeout, code == http.StatusTooEarly, code >= 500, code < 200:
		return err
	}
	return tallyman.Reject(err)
}

// place is a URL as errors show it: without user, password and query.
func place(u *url.URL) string {
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}
