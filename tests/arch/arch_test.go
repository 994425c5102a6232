package arch_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"unicode"
)

func TestArchitecture(t *testing.T) {
	t.Parallel()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("no go.mod above the test")
		}
		dir = up
	}
	files, faults, err := inspect(os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	if files < 10 {
		t.Fatalf("only %d Go files were found in %s", files, dir)
	}
	for _, f := range faults {
		t.Error(f)
	}
}

// inspect reads every Go file of the module in fsys and returns how many there
// are and what is wrong with them.
func inspect(fsys fs.FS) (files int, faults []string, err error) {
	err = fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name == "." {
				return nil
			}
			base := d.Name()
			_, nested := fs.Stat(fsys, path.Join(name, "go.mod"))
			if nested == nil || base == "testdata" || base == "vendor" || base[0] == '.' || base[0] == '_' {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		src, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		files++
		found, err := inspectFile(name, src)
		faults = append(faults, found...)
		return err
	})
	return files, faults, err
}

func inspectFile(name string, src []byte) ([]string, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	f := &inspection{fset: fset, pkg: path.Dir(name), test: strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "tests/")}
	f.names(name, file)
	f.imports(file)
	if !f.test {
		f.literals(file)
	}
	return f.faults, nil
}

type inspection struct {
	fset   *token.FileSet
	pkg    string // relative to the root
	test   bool
	faults []string
}

func (f *inspection) fault(at token.Pos, format string, args ...any) {
	p := f.fset.Position(at)
	f.faults = append(f.faults, fmt.Sprintf("%s:%d: ", p.Filename, p.Line)+fmt.Sprintf(format, args...))
}

// imports holds the file to the import table. A test may import whatever it
// needs to set the scene, except a command, which it should run.
func (f *inspection) imports(file *ast.File) {
	r, listed := lookup(f.pkg)
	if !listed {
		f.fault(file.Package, "package %s is not in the import table; say there what it may import and why", f.pkg)
		return
	}
	for _, spec := range file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			f.fault(spec.Pos(), "import %s: %v", spec.Path.Value, err)
			continue
		}
		ours, isOurs := within(imported)
		switch {
		case f.test && slices.Contains(forTests, ours):
		case isOurs && f.test && !strings.HasPrefix(f.pkg, "cmd/"):
			if strings.HasPrefix(ours, "cmd/") {
				f.fault(spec.Pos(), "a test of %s imports %s: run the binary instead", f.pkg, ours)
			}
		case isOurs && !allowed(r.may, ours):
			f.fault(spec.Pos(), "%s must not import %s: %s", title(f.pkg), title(ours), r.why)
		}
		for _, o := range outside {
			if !f.test && strings.HasPrefix(imported, o.prefix) && !allowed(o.by, f.pkg) {
				f.fault(spec.Pos(), "%s must not import %s: %s", title(f.pkg), imported, o.why)
			}
		}
	}
}

// within returns the path of an imported package below the root, if it is ours.
func within(imported string) (string, bool) {
	if imported == module {
		return root, true
	}
	return strings.CutPrefix(imported, module+"/")
}

func title(pkg string) string {
	if pkg == root {
		return "the root package"
	}
	return pkg
}

// literals looks for subjects and error codes outside the packages that own them.
func (f *inspection) literals(file *ast.File) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			if n.Kind == token.STRING && strings.Contains(n.Value, ".commands.") && f.pkg != subjectOwner {
				f.fault(n.Pos(), "the subject %s is spelled outside %s: the layout of subjects has one owner", n.Value, subjectOwner)
			}
			if meaning := codes[n.Value]; meaning != "" && !slices.Contains(codeReaders, f.pkg) {
				f.fault(n.Pos(), "error code %s (%s) outside %s: codes are turned into our errors once, at the boundary",
					n.Value, meaning, strings.Join(codeReaders, ", "))
			}
		case *ast.SelectorExpr:
			of, ok := n.X.(*ast.Ident)
			if !ok || slices.Contains(codeReaders, f.pkg) {
				break
			}
			fromServer := of.Name == "jetstream" || of.Name == "nats" || of.Name == "pipeline"
			if name := n.Sel.Name; fromServer && (name == "APIError" || name == "ErrorCode" || strings.HasPrefix(name, "JSErrCode")) {
				f.fault(n.Pos(), "%s.%s outside %s: codes are turned into our errors once, at the boundary",
					of.Name, name, strings.Join(codeReaders, ", "))
			}
		}
		return true
	})
}

// names looks at the names that the file declares, its own and its package's included.
func (f *inspection) names(name string, file *ast.File) {
	f.name(file.Name, "package")
	for word, advice := range words {
		// Names of packages run together, as in leaseutil.
		if short := strings.TrimSuffix(file.Name.Name, "_test"); strings.HasSuffix(short, word) && len(split(short)) == 1 && short != word {
			f.fault(file.Name.Pos(), "package %s ends in %q: %s", short, word, advice)
		}
	}
	for _, word := range strings.FieldsFunc(strings.TrimSuffix(path.Base(name), ".go"), func(r rune) bool { return r == '_' || r == '-' }) {
		if advice := words[strings.ToLower(word)]; advice != "" {
			f.fault(file.Package, "file %s has %q in its name: %s", name, word, advice)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			f.name(n.Name, "function")
		case *ast.TypeSpec:
			f.name(n.Name, "type")
		case *ast.Field:
			for _, id := range n.Names {
				f.name(id, "field or parameter")
			}
		case *ast.ValueSpec:
			for _, id := range n.Names {
				f.name(id, "name")
			}
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				f.idents(n.Lhs...)
			}
		case *ast.RangeStmt:
			if n.Tok == token.DEFINE {
				f.idents(n.Key, n.Value)
			}
		}
		return true
	})
}

func (f *inspection) idents(exprs ...ast.Expr) {
	for _, e := range exprs {
		if id, ok := e.(*ast.Ident); ok {
			f.name(id, "variable")
		}
	}
}

func (f *inspection) name(id *ast.Ident, what string) {
	for _, word := range split(id.Name) {
		if advice := words[word]; advice != "" {
			f.fault(id.Pos(), "%s %s has the word %q: %s", what, id.Name, word, advice)
		}
	}
}

// split cuts a name in camel case or with underscores into lower-case words;
// initials such as DLQ stay together.
func split(name string) []string {
	var parts []string
	rs := []rune(name)
	start := 0
	for i := 1; i <= len(rs); i++ {
		if i < len(rs) {
			lowerToUpper := unicode.IsUpper(rs[i]) && !unicode.IsUpper(rs[i-1])
			endOfInitials := unicode.IsUpper(rs[i]) && i+1 < len(rs) && unicode.IsLower(rs[i+1])
			if !lowerToUpper && !endOfInitials && rs[i] != '_' {
				continue
			}
		}
		if part := strings.ToLower(strings.Trim(string(rs[start:i]), "_")); part != "" {
			parts = append(parts, part)
		}
		start = i
	}
	return parts
}

// TestInspect proves that the rules above can be broken.
func TestInspect(t *testing.T) {
	t.Parallel()
	ours := func(paths ...string) string {
		var b strings.Builder
		for _, p := range paths {
			fmt.Fprintf(&b, "import _ %q\n", strings.TrimSuffix(module+"/"+p, "/."))
		}
		return b.String()
	}
	for _, c := range []struct{ name, file, src, want string }{
		{"a package on its own", "command/a.go", "package command", ""},
		{"an edge of the table", "dedupe/a.go", "package dedupe\n" + ours("command", "kvstate"), ""},
		{"an upward edge", "command/a.go", "package command\n" + ours("stream"), "command must not import stream: it is the vocabulary"},
		{"a sideways edge", "kvstate/a.go", "package kvstate\n" + ours("stream"), "kvstate must not import stream: records must be readable"},
		{"the root from below", "stream/a.go", "package stream\n" + ours("."), "stream must not import the root package: "},
		{"the root in the sweeper", "internal/sweep/a.go", "package sweep\n" + ours("."), "internal/sweep must not import the root package: what may be swept"},
		{"a server in the root", "a.go", "package tallyman\n" + ours("embedded"), "the root package must not import embedded: users link"},
		{"a command from the root", "a.go", "package tallyman\n" + ours("cmd/worker"), "must not import cmd/worker"},
		{"the pipeline from the stream", "stream/a.go", "package stream\n" + ours("internal/pipeline"), ""},
		{"the root in the relay", "outbox/a.go", "package outbox\n" + ours("."), "outbox must not import the root package: "},
		{"a driver in the outbox", "outbox/a.go", "package outbox\nimport _ \"modernc.org/sqlite\"", "outbox must not import modernc.org/sqlite"},
		{"a driver lent to the outbox", "outbox/pgxtx/a.go", "package pgxtx\nimport _ \"github.com/jackc/pgx/v5\"", ""},
		{"anything in a command", "cmd/worker/a.go", "package main\n" + ours(".", "stream", "embedded", "cmd/internal/flags"), ""},
		{"what is for tests in a command", "cmd/worker/a.go", "package main\n" + ours("internal/pooltest"), "cmd/worker must not import internal/pooltest"},
		{"an outbox in the root", "a.go", "package tallyman\n" + ours("outbox"), "the root package must not import outbox: users link"},
		{"anything in a test", "command/a_test.go", "package command_test\n" + ours(".", "embedded"), ""},
		{"a command in a test", "tests/e2e/a_test.go", "package e2e_test\n" + ours("cmd/worker"), "run the binary instead"},
		{"a package that nobody listed", "retry/a.go", "package retry", "package retry is not in the import table"},
		{"an internal package that nobody listed", "internal/clock/a.go", "package clock", "package internal/clock is not in the import table"},
		{"a nats-server outside embedded", "lease/a.go", "package lease\nimport _ \"github.com/nats-io/nats-server/v2/server\"", "lease must not import github.com/nats-io/nats-server"},
		{"a client in pure data", "command/a.go", "package command\nimport _ \"github.com/nats-io/nats.go/jetstream\"", "command must not import github.com/nats-io/nats.go/jetstream"},
		{"a subject in the stream", "stream/a.go", "package stream\nconst s = \"%s.commands.%s\"", ""},
		{"a subject elsewhere", "audit/a.go", "package audit\nconst s = \"orders.commands.>\"", "outside stream"},
		{"a subject in a comment", "audit/a.go", "package audit\n// orders.commands.>", ""},
		{"a code in the stream", "stream/a.go", "package stream\nconst c = 10077", ""},
		{"a code elsewhere", "worker.go", "package tallyman\nvar b = c == 10071", "error code 10071 (wrong last sequence)"},
		{"an API error elsewhere", "worker.go", "package tallyman\nvar e *jetstream.APIError", "jetstream.APIError outside stream"},
		{"an API error in kvstate", "kvstate/a.go", "package kvstate\nvar e *pipeline.APIError", ""},
		{"a package name that runs together", "lease/a.go", "package leaseutil", `package leaseutil ends in "util"`},
		{"a package with a bad name", "lease/a.go", "package lease_util", `package lease_util has the word "util"`},
		{"a file with a bad name", "lease/lease_util.go", "package lease", `has "util" in its name`},
		{"a type with a bad name", "lease/a.go", "package lease\ntype LeaseManager struct{}", `type LeaseManager has the word "manager"`},
		{"a function with a bad name", "lease/a.go", "package lease\nfunc HTTPHelper() {}", `function HTTPHelper has the word "helper"`},
		{"a parameter with a bad name", "lease/a.go", "package lease\nfunc f(job int) {}", "say command"},
		{"a variable with a bad name", "lease/a_test.go", "package lease\nfunc f() { for _, task := range x { toDLQ := task } }", "say parked"},
		{"a word within a word", "lease/a.go", "package lease\nvar utility, Multitasker int", ""},
		{"the names of others", "lease/a_test.go", "package lease\nfunc f(t *testing.T) { t.Helper() }", ""},
		{"another module below", "bench/a.go", "package job", ""},
		{"a folder of test data", "lease/testdata/a.go", "package job", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, faults, err := inspect(fstest.MapFS{"bench/go.mod": {}, c.file: {Data: []byte(c.src)}})
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Join(faults, "\n")
			if c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestTable finds slips in the table itself.
func TestTable(t *testing.T) {
	t.Parallel()
	for pkg, r := range table {
		if r.why == "" {
			t.Errorf("%s: no reason is given", pkg)
		}
		for _, may := range r.may {
			if _, ok := table[may]; !ok && may != "*" {
				t.Errorf("%s may import %s, which is not in the table", pkg, may)
			}
		}
	}
}
