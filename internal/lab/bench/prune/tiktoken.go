package main

import (
	"sync"

	"github.com/pkoukk/tiktoken-go"
	loader "github.com/pkoukk/tiktoken-go-loader"
)

var encoding = sync.OnceValue(func() *tiktoken.Tiktoken {
	tiktoken.SetBpeLoader(loader.NewOfflineLoader())
	e, err := tiktoken.GetEncoding("o200k_base")
	if err != nil {
		panic(err)
	}
	return e
})

// tiktokens counts tokens with an independent implementation.
func tiktokens(text string) int { return len(encoding().EncodeOrdinary(text)) }
