// A fetch that compresses the request body, which the official clients leave to
// the fetch they are given.
import { gzipSync } from "node:zlib";

export function gzipFetch(url, init) {
  const headers = new Headers(init.headers);
  headers.set("Content-Encoding", "gzip");
  headers.delete("Content-Length"); // that of the plain body, if any
  return fetch(url, { ...init, headers, body: gzipSync(init.body) });
}
