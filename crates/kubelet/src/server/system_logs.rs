//! `/logs/`: the directory of the node's logs, `/var/log`: its directories as lists of links, its files, and ranges of them.
//!
//! Invariants:
//! - Only what lies below the directory is served: a symbolic link that leads out of it does not exist for clients, so that a pod that may
//!   write there cannot show them other files of the node.
//! - Only regular files are read, a block at a time as the client reads, and at most the length that the file had at first.
//! - No content is served as HTML but the lists.
//!
//! Source: upstream's `ServeLogs`, which is Go's `http.FileServer`. The query of `enableSystemLogQuery`, which is off unless a
//! configuration asks for it, is not offered.

use super::logs::blocking;
use super::node_api::NodeApi;
use super::request::{self, KubeletRequest, ServerBody};
use bytes::Bytes;
use futures_util::{Stream, stream};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use kaji_meta::query::escape;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::fmt::Write as _;
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes of a file that are read at once.
const BLOCK: u64 = 64 << 10;
/// The most entries of a directory that is listed.
const MAX_ENTRIES: usize = 20_000;
/// The first bytes of a file, which tell its type.
const HEAD: usize = 512;

const HTML: &str = "text/html; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
const GZIP: &str = "application/x-gzip";
const BINARY: &str = "application/octet-stream";

/// What a path names.
enum Found {
    /// A directory, and the page that lists it.
    Directory(String),
    /// A file, its metadata and its content type.
    File(File, Metadata, &'static str),
}

/// Answers a GET.
pub(super) async fn handle(api: &NodeApi, request: KubeletRequest) -> Response<ServerBody> {
    let Some(path) = request.path.strip_prefix("/logs/") else { return redirect("/logs/") };
    let (root, relative) = (api.cx.config.system_log_dir.clone(), normal(path));
    let place = relative.clone();
    let found = match blocking(move || find(&root, &place)).await {
        Ok(found) => found,
        Err(error) => return failed(&error),
    };
    let is_directory = matches!(found, Found::Directory(_));
    let base = relative.rsplit('/').next().unwrap_or_default();
    match (is_directory, path.is_empty() || path.ends_with('/')) {
        (true, false) => redirect(&format!("{}/", escape(base))),
        (false, true) => redirect(&format!("../{}", escape(base))),
        _ => match found {
            Found::Directory(page) => request::respond(StatusCode::OK, HTML, page),
            Found::File(file, metadata, content_type) => {
                content(file, &metadata, content_type, &request.headers)
            }
        },
    }
}

/// A path without empty segments, `.` and `..`; the latter stops at the root.
fn normal(path: &str) -> String {
    let mut segments = vec![];
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            other => segments.push(other),
        }
    }
    segments.join("/")
}

/// Opens a path below the root: links are followed first, then what they lead to is opened without any.
fn find(root: &Path, relative: &str) -> io::Result<Found> {
    let root = root.canonicalize()?;
    let path = root.join(relative).canonicalize()?;
    let below = path.strip_prefix(&root).map_err(|_| io::ErrorKind::NotFound)?;
    let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat(CWD, &root, directory, Mode::empty())?;
    // A pipe would not be opened until its other end is.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let file = File::from(kaji_files::open_within(&root, below, flags, resolve)?);
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return list(&file).map(Found::Directory);
    }
    if !metadata.is_file() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let content_type = sniff(&file)?;
    Ok(Found::File(file, metadata, content_type))
}

/// The page of a directory, in Go's form.
fn list(directory: &File) -> io::Result<String> {
    let mut names = vec![];
    for entry in rustix::fs::Dir::read_from(directory)? {
        let entry = entry?;
        let mut name = entry.file_name().to_string_lossy().into_owned();
        if name == "." || name == ".." {
            continue;
        }
        if entry.file_type().is_dir() {
            name.push('/');
        }
        if names.len() == MAX_ENTRIES {
            return Err(io::Error::other(format!("the directory has more than {MAX_ENTRIES} entries")));
        }
        names.push(name);
    }
    names.sort_unstable();
    let mut page =
        String::from("<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n");
    for name in names {
        // Writing to a string does not fail.
        let _ = writeln!(page, "<a href=\"{}\">{}</a>", link(&name), escaped(&name));
    }
    page.push_str("</pre>\n");
    Ok(page)
}

/// A relative reference to an entry of a directory, of which that of a directory ends with a slash.
fn link(name: &str) -> String {
    match name.strip_suffix('/') {
        Some(directory) => format!("{}/", escape(directory)),
        None => escape(name),
    }
}

/// Text within HTML.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

/// The content type by a file's first bytes: text has no control characters but those of lines, tabs and terminals.
fn sniff(file: &File) -> io::Result<&'static str> {
    let mut head = [0; HEAD];
    let length = file.read_at(&mut head, 0)?;
    Ok(match &head[..length] {
        [0x1f, 0x8b, 0x08, ..] => GZIP,
        head if head.iter().all(|byte| !matches!(byte, 0..=8 | 11 | 14..=26 | 28..=31)) => TEXT,
        _ => BINARY,
    })
}

/// A file's content, or the range of it that is asked for.
fn content(
    file: File,
    metadata: &Metadata,
    content_type: &'static str,
    headers: &HeaderMap,
) -> Response<ServerBody> {
    let length = metadata.len();
    let asked = headers.get(header::RANGE).and_then(|range| range.to_str().ok());
    let range = match asked.map(|asked| range(asked, length)) {
        Some(Ok(range)) => range,
        None => None,
        Some(Err(Unsatisfiable)) => {
            let mut refused =
                request::error(StatusCode::RANGE_NOT_SATISFIABLE, "invalid range: failed to overlap\n");
            set(&mut refused, header::CONTENT_RANGE, format!("bytes */{length}"));
            return refused;
        }
    };
    let (code, sent) = match &range {
        Some(range) => (StatusCode::PARTIAL_CONTENT, range.clone()),
        None => (StatusCode::OK, 0..length),
    };
    let mut response = request::stream(content_type, blocks(file, sent.clone()));
    *response.status_mut() = code;
    set(&mut response, header::ACCEPT_RANGES, "bytes".to_owned());
    set(&mut response, header::CONTENT_LENGTH, (sent.end - sent.start).to_string());
    if let Ok(modified) = metadata.modified() {
        set(&mut response, header::LAST_MODIFIED, httpdate::fmt_http_date(modified));
    }
    if range.is_some() {
        set(&mut response, header::CONTENT_RANGE, format!("bytes {}-{}/{length}", sent.start, sent.end - 1));
    }
    response
}

/// A range that has no byte of the content.
#[derive(Debug, PartialEq)]
struct Unsatisfiable;

/// The bytes that a `Range` header (RFC 9110) asks for. `None`: all of them, since it is malformed, of another unit, or has several
/// ranges, which a server may ignore.
fn range(header: &str, length: u64) -> Result<Option<Range<u64>>, Unsatisfiable> {
    // Of no bytes none can be left out.
    let bounds =
        header.strip_prefix("bytes=").filter(|_| length > 0).and_then(|set| set.trim().split_once('-'));
    let Some((first, last)) = bounds else { return Ok(None) };
    let range = match (first, last) {
        ("", count) => count.parse().ok().map(|count: u64| length.saturating_sub(count)..length),
        (first, "") => first.parse().ok().map(|first: u64| first..length),
        (first, last) => match (first.parse(), last.parse::<u64>()) {
            (Ok(first), Ok(last)) if first <= last => Some(first..last.saturating_add(1).min(length)),
            _ => None,
        },
    };
    match range {
        Some(range) if range.is_empty() => Err(Unsatisfiable),
        range => Ok(range),
    }
}

/// Reads a part of a file. A file that has been cut meanwhile ends the connection, since its length was promised.
fn blocks(file: File, part: Range<u64>) -> impl Stream<Item = io::Result<Bytes>> + Send {
    stream::try_unfold((file, part), |(file, part)| async move {
        if part.is_empty() {
            return Ok(None);
        }
        let size = (part.end - part.start).min(BLOCK);
        let start = part.start;
        let work = move || {
            let mut block = vec![0; usize::try_from(size).unwrap_or_default()];
            file.read_exact_at(&mut block, start)?;
            Ok((block, file))
        };
        let (block, file) = blocking(work).await?;
        Ok(Some((Bytes::from(block), (file, start + size..part.end))))
    })
}

fn redirect(to: &str) -> Response<ServerBody> {
    let mut response = request::error(StatusCode::MOVED_PERMANENTLY, "");
    set(&mut response, header::LOCATION, to.to_owned());
    response
}

fn not_found() -> Response<ServerBody> {
    request::error(StatusCode::NOT_FOUND, "404 page not found\n")
}

fn failed(error: &io::Error) -> Response<ServerBody> {
    match error.kind() {
        _ if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => not_found(),
        io::ErrorKind::PermissionDenied => request::error(StatusCode::FORBIDDEN, "403 Forbidden\n"),
        io::ErrorKind::NotFound
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::InvalidFilename
        | io::ErrorKind::InvalidInput => not_found(),
        _ => {
            tracing::warn!(%error, "a log of the node cannot be read");
            request::error(StatusCode::INTERNAL_SERVER_ERROR, "500 Internal Server Error\n")
        }
    }
}

/// Sets a header. What is no header's value, which none of these is, is left out.
fn set(response: &mut Response<ServerBody>, name: HeaderName, value: String) {
    if let Ok(value) = HeaderValue::from_maybe_shared(Bytes::from(value)) {
        response.headers_mut().insert(name, value);
    }
}
