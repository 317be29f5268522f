package main

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// page is one help text.
type page struct {
	name     string
	purpose  string   // the first sentence
	usage    []string // lines
	sections []section
}

// section is a heading with what is below it. That of the first paragraphs is empty.
type section struct {
	heading string
	blocks  []block
}

// block is a paragraph, or the explanation of a term.
type block struct {
	term string
	text string
}

// commands returns the first words of the section with commands.
func (p page) commands() (words []string) {
	for _, s := range p.sections {
		if s.heading == "Commands" {
			for _, b := range s.blocks {
				words = append(words, strings.Fields(b.term)[0])
			}
		}
	}
	return words
}

func parse(help string) (page, error) {
	p := page{sections: []section{{}}}
	paragraph := true // the next line begins one
	usage := false
	for line := range strings.Lines(help) {
		line = strings.TrimRightFunc(line, unicode.IsSpace)
		text := strings.TrimSpace(line)
		indent := len(line) - len(strings.TrimLeft(line, " "))
		s := &p.sections[len(p.sections)-1]
		heading, rest, isHeading := strings.Cut(line, ":")
		isHeading = isHeading && indent == 0 && paragraph && (rest == "" || rest[0] == ' ')
		switch {
		case text == "":
			usage = false
		case isHeading && heading == "Usage":
			usage = true
			p.usage = append(p.usage, strings.TrimSpace(rest))
		case usage:
			p.usage = append(p.usage, text)
		case isHeading:
			p.sections = append(p.sections, section{heading: heading})
			if rest = strings.TrimSpace(rest); rest != "" {
				p.sections[len(p.sections)-1].blocks = []block{{text: rest}}
			}
		case indent > 0 && indent < deep:
			term, text, _ := strings.Cut(text, "  ")
			s.blocks = append(s.blocks, block{term: term, text: strings.TrimSpace(text)})
		case paragraph && indent == 0 || len(s.blocks) == 0:
			s.blocks = append(s.blocks, block{text: text})
		default:
			last := &s.blocks[len(s.blocks)-1]
			last.text = strings.TrimSpace(last.text + " " + text)
		}
		paragraph = text == ""
	}
	if blocks := p.sections[0].blocks; len(blocks) > 0 {
		p.purpose, _, _ = strings.Cut(blocks[0].text, ". ")
		p.purpose = strings.TrimSuffix(p.purpose, ".")
	}
	switch {
	case p.purpose == "":
		return page{}, errors.New("it does not begin with what the command does")
	case len(p.usage) == 0:
		return page{}, errors.New(`it has no line that begins with "Usage:"`)
	}
	return p, nil
}

// deep is the least indentation of a line that goes on with the one before. Terms have
// less.
const deep = 8

// roff writes the page of a command in the language of man(7).
func roff(main page, subcommands []page) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 1\n.SH NAME\n%s \\- %s\n", strings.ToUpper(main.name), escape(main.name), escape(lowerFirst(main.purpose)))
	b.WriteString(".SH SYNOPSIS\n")
	forms := map[string]bool{}
	for _, p := range append([]page{main}, subcommands...) {
		for _, line := range p.usage {
			form, _, _ := strings.Cut(line, "  ") // what else is there is said below
			if forms[form] {
				continue
			}
			forms[form] = true
			name, rest, _ := strings.Cut(form, " [")
			fmt.Fprintf(&b, ".B %s\n", escape(name))
			if rest != "" {
				b.WriteString(escape("["+rest) + "\n")
			}
			b.WriteString(".br\n")
		}
	}
	for _, s := range main.sections {
		heading := s.heading
		if heading == "" {
			heading = "Description"
		}
		fmt.Fprintf(&b, ".SH %s\n", escape(strings.ToUpper(heading)))
		s.write(&b)
	}
	for _, p := range subcommands {
		fmt.Fprintf(&b, ".SH %s\n", escape(strings.ToUpper(p.name)))
		for _, s := range p.sections {
			if s.heading != "" {
				fmt.Fprintf(&b, ".SS %s\n", escape(s.heading))
			}
			s.write(&b)
		}
	}
	return b.String()
}

func (s section) write(b *strings.Builder) {
	for _, block := range s.blocks {
		if block.term != "" {
			fmt.Fprintf(b, ".TP\n.B %s\n%s\n", escape(block.term), escape(block.text))
		} else {
			fmt.Fprintf(b, ".PP\n%s\n", escape(block.text))
		}
	}
}

// escape has roff print a line as it is.
func escape(line string) string {
	line = strings.NewReplacer(`\`, `\e`, "-", `\-`, "~", `\(ti`, "^", `\(ha`, "'", `\(aq`, "`", `\(ga`).Replace(line)
	if strings.HasPrefix(line, ".") {
		line = `\&` + line
	}
	return line
}

func lowerFirst(s string) string {
	first, size := utf8.DecodeRuneInString(s)
	return string(unicode.ToLower(first)) + s[size:]
}
