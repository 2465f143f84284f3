package condition

// A memberTree is the tree of members that an expression names in the arguments, or a part of it. A
// nil tree is valid and empty.
type memberTree struct {
	members  map[string]*memberTree
	folded   map[string]string // names of members by their folded form
	elements *memberTree       // elements of a list
}

// add returns the tree of a member, and adds it if needed.
func (t *memberTree) add(name string) *memberTree {
	if t == nil {
		return nil
	}
	if t.members == nil {
		t.members, t.folded = map[string]*memberTree{}, map[string]string{}
	}
	if t.members[name] == nil {
		t.members[name], t.folded[fold(name)] = &memberTree{}, name
	}
	return t.members[name]
}

// addElement returns the tree of all elements of a list, and adds it if needed.
func (t *memberTree) addElement() *memberTree {
	if t == nil {
		return nil
	}
	if t.elements == nil {
		t.elements = &memberTree{}
	}
	return t.elements
}

// member returns the tree of a member, or nil if the expression does not name it.
func (t *memberTree) member(name string) *memberTree {
	if t == nil {
		return nil
	}
	return t.members[name]
}

// element returns the tree of all elements, or nil if the expression names nothing in them.
func (t *memberTree) element() *memberTree {
	if t == nil {
		return nil
	}
	return t.elements
}

// similar returns the name of another member for which some programs would take a key.
func (t *memberTree) similar(key, folded string) (name string, ok bool) {
	if t == nil || t.members[key] != nil {
		return "", false
	}
	name, ok = t.folded[folded]
	return name, ok
}
