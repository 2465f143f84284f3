package main

import (
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
)

// deb packs a binary as a Debian package with a systemd unit. Its paths, user and admin socket
// have the name of this project, so that it can be installed next to the caddy package of a
// distribution.
func (s *source) deb(name, work, binary string, p platform) error {
	dir := filepath.Join(work, "deb", p.arch) // nfpm reads files by path
	for _, wanted := range []string{"packaging/deb", "caddyfile_examples"} {
		if err := s.unpack(wanted, filepath.Join(dir, wanted)); err != nil {
			return err
		}
	}
	packaging := func(file string) string { return filepath.Join(dir, "packaging", "deb", file) }

	var contents files.Contents
	add := func(source, destination, kind string, mode os.FileMode) {
		contents = append(contents, &files.Content{Source: source, Destination: destination, Type: kind,
			FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: mode, MTime: s.time}})
	}
	add(binary, "/usr/bin/"+project, files.TypeFile, 0o755)
	add(packaging("Caddyfile"), "/etc/"+project+"/Caddyfile", files.TypeConfigNoReplace, 0o644)
	add(packaging(project+".service"), "/usr/lib/systemd/system/"+project+".service", files.TypeFile, 0o644)
	add(packaging("copyright"), "/usr/share/doc/"+project+"/copyright", files.TypeFile, 0o644)
	for _, file := range slices.Sorted(maps.Keys(s.files)) {
		if example, ok := strings.CutPrefix(file, "caddyfile_examples/"); ok {
			add(filepath.Join(dir, file), "/usr/share/doc/"+project+"/examples/"+example, files.TypeFile, 0o644)
		}
	}

	info := nfpm.WithDefaults(&nfpm.Info{
		Name:          project,
		Arch:          p.arch,
		Platform:      p.os,
		Version:       debVersion(s.version),
		VersionSchema: "none",
		Section:       "httpd",
		Priority:      "optional",
		Maintainer:    project + " maintainers <" + project + "@users.noreply.github.com>",
		Description:   imageTitle + "\n" + imageDescription,
		Homepage:      "https://" + modulePath,
		MTime:         s.time,
		Overridables: nfpm.Overridables{
			Depends:  []string{"adduser", "init-system-helpers (>= 1.54)", "passwd"},
			Suggests: []string{"nodejs", "npm"}, // for servers started with npx
			Contents: contents,
			Scripts: nfpm.Scripts{PostInstall: packaging("postinst"), PreRemove: packaging("prerm"),
				PostRemove: packaging("postrm")},
		},
	})
	if err := nfpm.PrepareForPackager(info, "deb"); err != nil {
		return err
	}
	packager, err := nfpm.Get("deb")
	if err != nil {
		return err
	}
	return writeFile(name, func(w io.Writer) error { return packager.Package(info, w) })
}

// debVersion returns a version that dpkg orders as Go does, such as v1.0.0-rc.1 before v1.0.0.
func debVersion(version string) string {
	release, pre, ok := strings.Cut(strings.TrimPrefix(version, "v"), "-")
	if ok {
		release += "~" + strings.ReplaceAll(pre, "-", ".") // a hyphen would start the package revision
	}
	return release
}
