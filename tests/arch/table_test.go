// Package arch_test holds the architecture to its word: which package may
// import which, who may name the subjects, who may look at the server's error
// codes, and which words the code does without.
package arch_test

import (
	"slices"
	"strings"
)

const module = "github.com/tallyman-go/tallyman"

// root is the package that users import.
const root = "."

// rule says which of our packages a package may import, and why no others.
type rule struct {
	may []string
	why string
}

// table is the import table. A path that ends in "/*" stands for every
// package below it, and "*" for every package but the commands and those for
// tests. Packages that are listed may be missing; a package that is not listed is
// an error.
var table = map[string]rule{
	root: {
		may: []string{"command", "stream", "kvstate", "dedupe", "lease", "audit", "internal/pipeline", "internal/sweep", "internal/failpoint", "internal/plural"},
		why: "users link what the root links: an in-process server, an outbox, a journal, handlers for other languages and command lines are theirs to choose",
	},
	"command": {
		why: "it is the vocabulary: pure data that everything else speaks, so it knows nobody",
	},
	"internal/pipeline": {
		why: "it pipelines publishes for stream and kvstate alike and knows neither commands nor records",
	},
	"internal/sweep": {
		may: []string{"command", "internal/pipeline", "kvstate", "stream"},
		why: "what may be swept is proved from the stream and its records; what a worker has acked, and how follow-ups are born, it is told",
	},
	"internal/memory": {
		may: []string{"command", "internal/pipeline", "kvstate", "stream"},
		why: "it plays the server to tests of the root, so it knows what the root says to a server and nothing of the root",
	},
	"internal/failpoint": {
		why: "it ends the process and needs to know nobody for that",
	},
	"internal/plural": {
		why: "it spells numbers, whatever is counted",
	},
	"stream": {
		may: []string{"command", "internal/pipeline"},
		why: "it carries commands and must not know what became of them: whether to ack is decided above it",
	},
	"kvstate": {
		may: []string{"command", "internal/pipeline"},
		why: "records must be readable and provable without the stream, by the audit and by hand",
	},
	"dedupe": {
		may: []string{"command", "kvstate"},
		why: "identity is judged from a command and its record alone, however they came here",
	},
	"lease": {
		why: "trust is arithmetic on the clock; what a lost lease means is decided above it",
	},
	"outbox": {
		may: []string{"command", "lease", "dedupe", "kvstate", "internal/failpoint", "internal/plural"},
		why: "a relay submits like any producer, through an interface that the root's has, and must not reach around the root into the stream (ADR 040)",
	},
	"outbox/pgxtx": {
		may: []string{"outbox"},
		why: "it lends pgx to the outbox, so that those who use another driver do not link it",
	},
	"journal": {
		may: []string{"command", "dedupe", "kvstate", "stream", "internal/pipeline", "internal/plural"},
		why: "a run is written like a record, and whoever submits its commands comes from outside (docs/adr/020)",
	},
	"audit": {
		may: []string{"command", "kvstate", "stream", "dedupe", "internal/plural"},
		why: "the books are proved from what JetStream stores, not from what a worker or producer believes; dedupe says under which key an id lies",
	},
	"story": {
		may: []string{"command", "dedupe", "kvstate", "stream", "desk"},
		why: "what happened is told from what JetStream stores, not from what a worker or producer believes; what may be done is for the desk to say",
	},
	"desk": {
		may: []string{"command", "dedupe", "kvstate", "stream", "internal/pipeline"},
		why: "an operator acts on what JetStream stores, as the audit reads it, and asks no worker or producer",
	},
	"runner": {
		may: []string{root},
		why: "handlers for other languages get no rights that a handler in Go lacks",
	},
	"embedded": {
		why: "it is a server and knows nothing of what it stores",
	},
	"internal/pgtest": {
		why: "it finds a PostgreSQL for tests, whatever they test",
	},
	"internal/pooltest": {
		may: []string{root, "embedded"},
		why: "it sets the scene of tests as a user would",
	},
	"images/*": {
		why: "what goes into an image beside the commands stands alone",
	},
	"examples/*": {
		may: []string{root, "embedded", "runner", "journal", "outbox", "outbox/pgxtx"},
		why: "an example shows what users can do, and they have no more than this",
	},
	"cmd/*":   {may: []string{"*", "cmd/*"}, why: "they wire everything"},
	"tests/*": {may: []string{"*"}, why: "a binary is tested by running it"},
}

// forTests are the packages that only tests may link.
var forTests = []string{"internal/memory", "internal/pooltest", "internal/pgtest"}

// subjectOwner is the only package that spells the subjects of commands.
const subjectOwner = "stream"

// codeReaders are the packages that may look at JetStream's error codes.
var codeReaders = []string{"stream", "kvstate", "journal", "internal/pipeline"}

// codes are the error codes that mean "someone else was faster" or "already there".
var codes = map[string]string{
	"10071": "wrong last sequence",
	"10164": "wrong last sequence, other spelling",
	"10077": "the store refused",
}

// outside says which packages may import what is not ours, by prefix of the
// import path.
var outside = []struct {
	prefix string
	by     []string
	why    string
}{
	{"github.com/nats-io/nats-server/", []string{"embedded"},
		"a server of 20 MB does not belong into every program that submits a command"},
	{"github.com/jackc/pgx", []string{"outbox/pgxtx", "internal/pgtest", "cmd/*", "examples/*"},
		"the outbox works on database/sql; which driver a service links is its own choice"},
	{"modernc.org/sqlite", []string{"cmd/*", "examples/*"},
		"the outbox works on database/sql; which driver a service links is its own choice"},
	{"github.com/nats-io/nats.go",
		[]string{root, "stream", "kvstate", "internal/pipeline", "internal/memory", "internal/pooltest", "journal", "cmd/*", "examples/*"},
		"command, dedupe and lease are tested without a server, relay and runner act through the root, and audit, desk and story read what stream and kvstate hold"},
}

// words that no name in this code is made of: each hides what a thing does, or
// has a word of its own here.
var words = map[string]string{
	"manager": "name what it does", "helper": "name what it does", "helpers": "name what it does",
	"util": "name what it does", "utils": "name what it does",
	"job": "say command", "jobs": "say commands", "task": "say command", "tasks": "say commands",
	"dlq": "say parked",
}

// lookup finds the rule of the package at path, relative to the root.
func lookup(path string) (rule, bool) {
	if r, ok := table[path]; ok {
		return r, true
	}
	for pattern, r := range table {
		if matches(pattern, path) {
			return r, true
		}
	}
	return rule{}, false
}

// matches reports whether the package at path falls under a pattern of the table.
func matches(pattern, path string) bool {
	if pattern == "*" {
		return !strings.HasPrefix(path, "cmd/") && !slices.Contains(forTests, path)
	}
	if dir, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(path, dir)
	}
	return pattern == path
}

func allowed(patterns []string, path string) bool {
	for _, p := range patterns {
		if matches(p, path) {
			return true
		}
	}
	return false
}
