package runner

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// document reads YAML node by node instead of decoding it into a struct, so
// that every complaint knows its line. It collects errors and goes on.
type document struct {
	name    string
	anchors map[string]ast.Node
	errs    []error
}

type field struct {
	name  string
	value ast.Node
	line  int // of the name
}

func (d *document) failf(line int, format string, args ...any) {
	d.errs = append(d.errs, &ConfigError{File: d.name, Line: max(line, 1), Text: fmt.Sprintf(format, args...)})
}

// read returns the body of the only document, or nil after a complaint.
func (d *document) read(data []byte) ast.Node {
	// Duplicates are found in fields, which can say what to do about them.
	file, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		line, text := 1, err.Error()
		if ye := yaml.Error(nil); errors.As(err, &ye) {
			text = ye.GetMessage()
			if t := ye.GetToken(); t != nil && t.Position != nil {
				line = t.Position.Line
			}
		}
		d.failf(line, "not valid YAML: %s; correct the syntax (indent with spaces, quote text that holds \": \" or begins with a special character)", text)
		return nil
	}
	var bodies []ast.Node
	for _, doc := range file.Docs {
		if doc.Body != nil && doc.Body.Type() != ast.CommentType {
			bodies = append(bodies, doc.Body)
		}
	}
	switch {
	case len(bodies) == 0:
		d.failf(1, "the file is empty; %s", emptyRemedy)
		return nil
	case len(bodies) > 1:
		d.failf(lineOf(bodies[1]), "a second document begins here; put all handlers into one list and remove the \"---\"")
		return nil
	}
	d.anchors = make(map[string]ast.Node)
	ast.Walk(collect(d.anchors), bodies[0])
	return bodies[0]
}

type collect map[string]ast.Node

func (c collect) Visit(n ast.Node) ast.Visitor {
	if a, ok := n.(*ast.AnchorNode); ok && a.Name != nil {
		c[a.Name.GetToken().Value] = a.Value
	}
	return c
}

// plain follows anchors and aliases. Nil means that there is nothing.
func (d *document) plain(n ast.Node) ast.Node {
	for range 16 { // aliases of aliases end; a circle is nothing
		switch v := n.(type) {
		case *ast.AnchorNode:
			n = v.Value
		case *ast.AliasNode:
			if v.Value == nil {
				return nil
			}
			n = d.anchors[v.Value.GetToken().Value]
		default:
			return n
		}
	}
	return nil
}

// fields returns the entries of a mapping. What says where we are.
func (d *document) fields(n ast.Node, what string) []field {
	var values []*ast.MappingValueNode
	switch m := d.plain(n).(type) {
	case *ast.MappingNode:
		values = m.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{m}
	default:
		d.failf(lineOf(n), "%s must hold \"name: value\" lines", what)
		return nil
	}
	var out []field
	seen := make(map[string]int)
	for _, v := range values {
		f := field{name: v.Key.GetToken().Value, value: v.Value, line: lineOf(v.Key)}
		if _, merge := v.Key.(*ast.MergeKeyNode); merge {
			d.failf(f.line, "the merge key << is not supported; repeat the fields")
			continue
		}
		if first, twice := seen[f.name]; twice {
			d.failf(f.line, "%q is there already, in line %d; remove one of them", f.name, first)
			continue
		}
		seen[f.name] = f.line
		out = append(out, f)
	}
	return out
}

func (d *document) list(n ast.Node) ([]ast.Node, bool) {
	s, ok := d.plain(n).(*ast.SequenceNode)
	if !ok {
		return nil, false
	}
	return s.Values, true
}

// scalar returns text, and numbers and booleans as they are written.
func (d *document) scalar(n ast.Node) (string, bool) {
	switch v := d.plain(n).(type) {
	case *ast.StringNode:
		return v.Value, true
	case *ast.LiteralNode:
		return v.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return v.GetToken().Value, true
	}
	return "", false
}

// text returns a scalar that is not empty, or "" after a complaint.
func (d *document) text(f field) string {
	s, ok := d.scalar(f.value)
	switch {
	case !ok:
		d.failf(f.line, "%s has no single value; write %s: VALUE", f.name, f.name)
	case s == "":
		d.failf(f.line, "%s is empty; give it a value or remove the line", f.name)
	}
	return s
}

// texts returns a mapping of names to scalars; values may be empty.
func (d *document) texts(f field) map[string]string {
	out := make(map[string]string)
	for _, e := range d.fields(f.value, f.name) {
		s, ok := d.scalar(e.value)
		if !ok {
			d.failf(e.line, "%s of %s is not text; put it into quotes (\"\" for nothing)", e.name, f.name)
		}
		out[e.name] = s
	}
	return out
}

func (d *document) integer(f field, low, high int, remedy string) int {
	text, _ := d.scalar(f.value)
	v, err := strconv.Atoi(text)
	if err != nil || v < low || v > high {
		d.failf(f.line, "%s %q is not a whole number from %d to %d; %s", f.name, text, low, high, remedy)
		return low
	}
	return v
}

func (d *document) boolean(f field) bool {
	b, ok := d.plain(f.value).(*ast.BoolNode)
	if !ok {
		text, _ := d.scalar(f.value)
		d.failf(f.line, "%s %q is neither true nor false; write one of them", f.name, text)
		return false
	}
	return b.Value
}

func lineOf(n ast.Node) int {
	if n == nil {
		return 1
	}
	// A block mapping's own token is its first colon.
	if m, ok := n.(*ast.MappingNode); ok && len(m.Values) > 0 {
		n = m.Values[0].Key
	}
	if t := n.GetToken(); t != nil && t.Position != nil {
		return t.Position.Line
	}
	return 1
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
