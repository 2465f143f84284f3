package condition

// A place is a position in the arguments, with the members that an expression names there. A nil place is valid and
// empty.
type place struct {
	members map[string]*place
	folded  map[string]string // names of members by their folded form
	each    *place            // elements of a list
}

// grow returns the place of a member, and adds it if needed.
func (p *place) grow(name string) *place {
	if p == nil {
		return nil
	}
	if p.members == nil {
		p.members, p.folded = map[string]*place{}, map[string]string{}
	}
	if p.members[name] == nil {
		p.members[name], p.folded[fold(name)] = &place{}, name
	}
	return p.members[name]
}

// growElement returns the place of all elements, and adds it if needed.
func (p *place) growElement() *place {
	if p == nil {
		return nil
	}
	if p.each == nil {
		p.each = &place{}
	}
	return p.each
}

// member returns the place of a member, or nil if the expression does not name it.
func (p *place) member(name string) *place {
	if p == nil {
		return nil
	}
	return p.members[name]
}

// element returns the place of all elements, or nil if the expression names nothing in them.
func (p *place) element() *place {
	if p == nil {
		return nil
	}
	return p.each
}

// similar returns the name of another member that some programs would read a key as.
func (p *place) similar(key, folded string) (name string, ok bool) {
	if p == nil || p.members[key] != nil {
		return "", false
	}
	name, ok = p.folded[folded]
	return name, ok
}
