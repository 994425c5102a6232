package demo

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
)

// handlers is how many files one worker process packs at once.
const handlers = 4

// Worker is the hidden command of a worker process. It ends when its standard
// input does, which is when the process that started it ends, however that may be.
type Worker struct {
	URL     string        `required:"" help:"Address of the demo's server."`
	Dir     string        `required:"" help:"Directory with the files."`
	Effects string        `required:"" help:"File to log effects to."`
	Delay   time.Duration `help:"How long each file takes at least."`
}

// Run works until standard input ends or ctx does.
func (c *Worker) Run(ctx context.Context, common *cli.Common, _ *cli.Out) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	root, err := os.OpenRoot(c.Dir)
	if err != nil {
		return err
	}
	defer root.Close()
	log, err := openEffects(c.Effects)
	if err != nil {
		return err
	}
	nc, err := tallyman.Connect(c.URL)
	if err != nil {
		return err
	}
	defer nc.Close()
	pool, err := tallyman.Open(ctx, nc, poolName)
	if err != nil {
		return err
	}
	defer pool.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	objects, err := js.ObjectStore(ctx, objectsName)
	if err != nil {
		return err
	}
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	p := &packer{root: root, log: log, objects: objects, encoder: encoder, delay: c.Delay, pauses: map[string]chan struct{}{}}
	mux := &tallyman.Mux{}
	pack.Handle(mux, p.handle)
	worker, err := pool.NewWorker(tallyman.WorkerConfig{
		Mux: mux, Concurrency: handlers, Drain: 2 * time.Second, Logger: common.Logger(),
		Observe: func(e tallyman.Event) { _ = log.add(e.Type.String(), e.ID, e.Attempt) }, // logged by add
	})
	if err != nil {
		return err
	}
	go func() {
		defer stop()
		p.listen(os.Stdin)
	}()
	return worker.Run(ctx)
}

// packer is the handler of one worker process.
type packer struct {
	root    *os.Root
	log     *effects
	objects jetstream.ObjectStore
	encoder *zstd.Encoder // EncodeAll is safe for concurrent use
	delay   time.Duration

	mu     sync.Mutex
	pauses map[string]chan struct{} // by id; closed to go on
}

// listen ends the pause of every id that is a line of r, until r ends.
func (p *packer) listen(r io.Reader) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		p.mu.Lock()
		if pause := p.pauses[lines.Text()]; pause != nil {
			close(pause)
			delete(p.pauses, lines.Text())
		}
		p.mu.Unlock()
	}
}

// handle packs one file and stores it under its path. Doing so twice gives the
// same object, so an attempt that another one follows harms nothing.
func (p *packer) handle(ctx context.Context, claim *tallyman.Claim, o order) (done, error) {
	if err := p.log.add(effectBegun, claim.ID(), claim.Attempt()); err != nil {
		return done{}, err
	}
	body, err := p.read(o)
	if err != nil {
		return done{}, tallyman.Reject(err)
	}
	packed := p.encoder.EncodeAll(body, nil)
	if err := wait(ctx, p.delay); err != nil {
		return done{}, err
	}
	if o.Pause == beforeStoring {
		if err := p.pause(ctx, claim); err != nil {
			return done{}, err
		}
	}
	if _, err := p.objects.Put(ctx, jetstream.ObjectMeta{Name: o.Path}, bytes.NewReader(packed)); err != nil {
		return done{}, fmt.Errorf("store packed file: %w", err)
	}
	if err := p.log.add(effectStored, claim.ID(), claim.Attempt()); err != nil {
		return done{}, err
	}
	if o.Pause == afterStoring {
		// The work is done: whoever wakes up too late still hands in its result,
		// which is then refused.
		_ = p.pause(ctx, claim)
	}
	return done{Packed: int64(len(packed))}, nil
}

// read returns the file if it still is what was submitted.
func (p *packer) read(o order) ([]byte, error) {
	f, err := open(p.root, o.Path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, errors.New("the file has vanished since it was submitted")
	}
	if err != nil {
		return nil, fmt.Errorf("read file: %w", reason(err))
	}
	defer f.Close()
	body, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read file: %w", reason(err))
	}
	if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != o.SHA256 {
		return nil, errors.New("the file has changed since it was submitted")
	}
	return body, nil
}

// pause waits to be told to go on; a fault may come instead.
func (p *packer) pause(ctx context.Context, claim *tallyman.Claim) error {
	goOn := make(chan struct{})
	p.mu.Lock()
	p.pauses[claim.ID()] = goOn
	p.mu.Unlock()
	if err := p.log.add(effectPaused, claim.ID(), claim.Attempt()); err != nil {
		return err
	}
	select {
	case <-goOn:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
