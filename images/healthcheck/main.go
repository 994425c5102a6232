// Healthcheck asks every URL given for a 200 and exits 0 if all of them gave
// one, which no URL at all does too. An image made from scratch has no shell
// and no curl; this is what its health checks run instead. It is static and
// needs nothing of ours, so compose lends it to the NATS containers as well.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"time"
)

// limit bounds all requests together. It lies below the timeout of the health
// checks in Dockerfile and docker-compose.yml, so that the reason is printed
// before Docker gives up on the process.
const limit = 3 * time.Second

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for _, url := range os.Args[1:] {
		if err := check(ctx, url); err != nil {
			fmt.Fprintln(os.Stderr, "healthcheck:", err)
			os.Exit(1) //nolint:gocritic // cancel only frees a timer, and the process ends here
		}
	}
}

func check(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	if err := resp.Body.Close(); err != nil {
		return fmt.Errorf("GET %s: %w", url, err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", url, resp.Status)
	}
	return nil
}
