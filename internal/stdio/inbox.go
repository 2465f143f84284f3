package stdio

import "github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mailbox"

// A letter is a message on its way to a client.
type letter struct {
	message  frame
	in       *block    // that has most of the message and nothing else; nil for none
	code     int       // of the error that the message is; 0 for none
	question *question // that the message asks; nil for none
}

// Len implements [mailbox.Letter].
func (l letter) Len() int { return l.message.len() }

// An inbox holds what a child has sent for a client until the client's response takes it.
type inbox = mailbox.Box[letter]

func newInbox(owner string, limit int) *inbox { return mailbox.New[letter](owner, limit) }
