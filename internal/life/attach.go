package life

import (
	"fmt"
	"slices"
)

// Attach makes parent one more of n's parents, if it is none yet: it cannot be closed
// before n, or before Detach. It fails with an error that matches ErrClosed, naming the
// parent, if that is closed.
func (n *Node) Attach(parent *Node) error {
	mu.Lock()
	defer mu.Unlock()
	if parent.state != open {
		return fmt.Errorf("%s: %w", parent.label(), ErrClosed)
	}
	if parent.children == nil {
		parent.children = map[*Node]struct{}{}
	}
	if _, ok := parent.children[n]; !ok {
		parent.children[n] = struct{}{}
		n.parents = append(n.parents, parent)
	}
	return nil
}

// Detach ends what Attach or Init made of parent.
func (n *Node) Detach(parent *Node) {
	mu.Lock()
	defer mu.Unlock()
	delete(parent.children, n)
	n.parents = slices.DeleteFunc(n.parents, func(p *Node) bool { return p == parent })
}

// Rename sets the name anew that Ready set.
func (n *Node) Rename(name string) {
	mu.Lock()
	defer mu.Unlock()
	n.name = name
}
