package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/bar"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/command"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// confirm is how long an import goes on trying when a server is away: longer
// than a restart takes.
const confirm = 30 * time.Second

// Import is the command that submits a file.
type Import struct {
	File string `arg:"" help:"File to read; - reads stdin."`

	Kind          string `required:"" help:"Kind of the commands." placeholder:"KIND"`
	IDField       string `name:"id-field" xor:"id" help:"Top-level field or column that holds the id: a string or a number. Either this or --id-from-content." placeholder:"FIELD"`
	IDFromContent bool   `name:"id-from-content" xor:"id" help:"Derive the id from the content, so that equal lines are one command."`
	Format        string `help:"jsonl: a JSON value per line; lines: a payload per line; csv: a header, then a row per command. By default what the file's name ends in, else jsonl." enum:"jsonl,lines,csv," default:"" placeholder:"F"`
	Queue         string `help:"Queue to submit to." default:"default" placeholder:"NAME"`
	JSON          bool   `name:"json" help:"Print the summary as one JSON object."`
}

// Validate checks what the parser cannot.
func (i *Import) Validate() error {
	if i.Format == "" {
		i.Format = formatOf(i.File)
	}
	if i.IDField == "" && !i.IDFromContent {
		return errors.New("where are the ids? give --id-field FIELD or --id-from-content")
	}
	if i.Format == "lines" && i.IDField != "" {
		return errors.New("--id-field needs fields: give --id-from-content with --format lines")
	}
	if err := command.ValidateName("kind", i.Kind); err != nil {
		return err
	}
	return command.ValidateName("queue", i.Queue)
}

func formatOf(file string) string {
	switch filepath.Ext(file) {
	case ".csv":
		return "csv"
	case ".txt":
		return "lines"
	}
	return "jsonl"
}

// Run submits what the file holds and prints the summary.
func (i *Import) Run(ctx context.Context, common *cli.Common, out *cli.Out) error {
	in, size := io.Reader(os.Stdin), int64(0)
	if i.File != "-" {
		f, err := os.Open(i.File)
		if err != nil {
			return cli.Usage(err)
		}
		defer f.Close()
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			size = info.Size()
		}
		in = f
	}
	nc, pool, err := common.OpenPool(ctx, "tallyman producer")
	if err != nil {
		return err
	}
	defer nc.Close()
	defer pool.Close()

	view := newProgress(size)
	defer view.End()
	producer := pool.NewProducer(tallyman.ProducerConfig{Confirm: confirm})
	load := &loading{
		flags: i, producer: producer, stderr: view,
		limit: pool.Commands().Limit(),
	}
	settled := lookFor(ctx, nc, pool, i.Queue, view)
	ended := load.run(ctx, view.Reader(in))
	settled()
	// All outcomes are in, so this does not wait.
	if err := producer.Close(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	view.End()
	if err := load.summary.print(out, i.JSON); err != nil {
		return err
	}
	if ended != nil {
		return ended
	}
	return load.summary.verdict()
}

// newProgress shows on stderr how far a file has been read. Size is that of the
// input in bytes, 0 if it is not known.
func newProgress(size int64) *bar.Bar {
	return bar.On(os.Stderr, size,
		mpb.PrependDecorators(decor.CountersKibiByte("% .1f / % .1f")),
		mpb.AppendDecorators(decor.Percentage(), decor.Name(" "), decor.AverageSpeed(decor.SizeB1024(0), "% .1f")),
	)
}

// summary counts lines or rows. It is owned by the loading until that has ended.
type summary struct {
	Read      int `json:"read"`
	Accepted  int `json:"accepted"`
	Absorbed  int `json:"absorbed"`
	Conflicts int `json:"conflicts"`
	Failed    int `json:"failed"`
}

func (s summary) print(out *cli.Out, asJSON bool) error {
	if asJSON {
		return out.JSON(s)
	}
	_, err := fmt.Fprintf(out, "read %d: accepted %d, absorbed %d, conflicts %d, failed %d\n", s.Read, s.Accepted, s.Absorbed, s.Conflicts, s.Failed)
	return err
}

// verdict is nil if every line is a command of the pool now.
func (s summary) verdict() error {
	switch {
	case s.Failed > 0:
		return fmt.Errorf("%d of %d failed; correct them and import again, what was accepted is absorbed", s.Failed, s.Read)
	case s.Conflicts > 0:
		return fmt.Errorf("%w: %d of %d have an id that stands for another command", tallyman.ErrConflict, s.Conflicts, s.Read)
	}
	return nil
}
