package condition

// A place is one in the arguments, of which an expression names members. The nil place has none.
type place struct {
	members map[string]*place
	folded  map[string]string // the names of members by what fold returns of them
	each    *place            // element of a list
}

// grow returns the place of the member with that name.
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

// growElement returns the place of all elements.
func (p *place) growElement() *place {
	if p == nil {
		return nil
	}
	if p.each == nil {
		p.each = &place{}
	}
	return p.each
}

// member returns the place of the member with that name, nil if the expression does not name it.
func (p *place) member(name string) *place {
	if p == nil {
		return nil
	}
	return p.members[name]
}

// element returns the place of all elements, nil if the expression names nothing in them.
func (p *place) element() *place {
	if p == nil {
		return nil
	}
	return p.each
}

// alike returns the name of a member that some programs take a key for, though it is another one.
func (p *place) alike(key, folded string) (name string, ok bool) {
	if p == nil || p.members[key] != nil {
		return "", false
	}
	name, ok = p.folded[folded]
	return name, ok
}
