package stdio

import "github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mailbox"

// A letter is a message to a client.
type letter struct {
	message       frame
	block         *block         // block with most of the message and nothing else; nil for none
	code          int            // code of the JSON-RPC error; 0 for none
	serverRequest *serverRequest // set if the message is a server request
}

// Len implements [mailbox.Letter].
func (l letter) Len() int { return l.message.len() }

// An inbox holds messages of a child until the client's response takes them.
type inbox = mailbox.Box[letter]

func newInbox(owner string, limit int) *inbox { return mailbox.New[letter](owner, limit) }
