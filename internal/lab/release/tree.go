package main

import (
	"archive/tar"
	"io/fs"
	"path"
	"testing/fstest"
	"time"
)

// A tree has files in memory, to be packed. All of them have the same time and belong to root,
// so that the same content gives the same bytes.
type tree struct {
	fstest.MapFS
	time time.Time
}

func newTree(t time.Time) tree { return tree{fstest.MapFS{}, t} }

func (t tree) add(name string, mode fs.FileMode, content []byte) {
	t.MapFS[name] = &fstest.MapFile{Data: content, Mode: mode, ModTime: t.time}
	for dir := path.Dir(name); dir != "." && t.MapFS[dir] == nil; dir = path.Dir(dir) {
		t.MapFS[dir] = &fstest.MapFile{Mode: fs.ModeDir | 0o755, ModTime: t.time}
	}
}

func (t tree) link(name, target string) { t.add(name, fs.ModeSymlink|0o777, []byte(target)) }

// addOwnedDir adds a directory that belongs to the user of an image.
func (t tree) addOwnedDir(name string) {
	t.add(name, fs.ModeDir|0o700, nil)
	t.MapFS[name].Sys = &tar.Header{Uid: imageUser, Gid: imageUser} // used by tar.FileInfoHeader
}
