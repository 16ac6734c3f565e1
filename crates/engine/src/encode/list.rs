//! The body of a list, made piece by piece while it is sent.
//!
//! Invariant: at no time does more than one piece of it exist here, whatever its size.

use super::{SEPARATE_OBJECTS, finish, protobuf, view::View};
use crate::{
    cache::SelectedEntry,
    request::{Accept, Encoding},
    response::{ApiResponse, Body},
};
use bytes::Bytes;
use kaji_meta::Status;
use kaji_schema::yaml;
use serde_json::Value;

/// About how long a piece is.
const CHUNK: usize = 64 << 10;
/// Elements this long are separate pieces and share the cache's memory; shorter ones are gathered, which costs less
/// than sending each by itself.
const LARGE: usize = 16 << 10;

type Elements = Box<dyn Iterator<Item = Bytes> + Send + Sync>;

/// The response to a list, in the encoding that the client accepts.
///
/// # Errors
/// When an element cannot be converted.
pub(crate) async fn list(
    view: View,
    accept: &Accept,
    metadata: &Value,
    entries: Vec<SelectedEntry>,
) -> Result<ApiResponse, Status> {
    let (content_type, body) = match accept.encoding {
        Encoding::Protobuf => (protobuf::CONTENT_TYPE, protobuf::list(view, metadata, entries).await?),
        Encoding::Yaml => ("application/yaml", yaml(view, metadata, entries)?),
        Encoding::Json if view.separate() => (SEPARATE_OBJECTS, separate(view, metadata, entries)?),
        Encoding::Json => return finish(accept, 200, body(view, metadata, entries)?),
    };
    Ok(ApiResponse { code: 200, content_type, warnings: vec![], annotations: vec![], body })
}

/// The elements of a list, without their opening.
///
/// # Errors
/// When an element cannot be converted.
fn elements(view: View, entries: Vec<SelectedEntry>) -> Result<Elements, Status> {
    if view.infallible() {
        let element = move |entry: SelectedEntry| match view.listed(&entry) {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::error!(?entry, %error, "encoding an element of a list");
                entry.object().slice(view.opening().len()..)
            }
        };
        return Ok(Box::new(entries.into_iter().map(element)));
    }
    // Conversions may fail, and once the answer has begun it is too late to say so.
    let elements: Result<Vec<Bytes>, Status> = entries.iter().map(|e| view.listed(e)).collect();
    Ok(Box::new(elements?.into_iter()))
}

/// A list in pieces: its metadata, and then its objects, each by itself, as they lie in the cache.
///
/// # Errors
/// When an object cannot be converted.
fn separate(view: View, metadata: &Value, entries: Vec<SelectedEntry>) -> Result<Body, Status> {
    let head = std::iter::once(Bytes::from(metadata.to_string()));
    if view.infallible() {
        let object = move |entry: SelectedEntry| {
            view.element(&entry).unwrap_or_else(|error| {
                tracing::error!(?entry, %error, "encoding an object of a list");
                entry.object()
            })
        };
        return Ok(Body::Lazy(Box::new(head.chain(entries.into_iter().map(object)))));
    }
    let objects: Result<Vec<Bytes>, Status> = entries.iter().map(|entry| view.element(entry)).collect();
    Ok(Body::Lazy(Box::new(head.chain(objects?))))
}

/// A list. Small ones come whole.
///
/// # Errors
/// When an element cannot be converted.
fn body(view: View, metadata: &Value, entries: Vec<SelectedEntry>) -> Result<Body, Status> {
    let (head, tail, opening) = (view.list_head(metadata), view.list_tail(metadata), view.opening());
    let elements = elements(view, entries)?;
    let mut chunks = Chunks { buffer: head, tail, opening, elements, large: None, first: true, done: false };
    let first = chunks.next().unwrap_or_default();
    if chunks.done && chunks.buffer.is_empty() && chunks.large.is_none() {
        return Ok(Body::Full(first));
    }
    Ok(Body::Lazy(Box::new(std::iter::once(first).chain(chunks))))
}

/// A list in YAML; one element at a time is a value.
///
/// # Errors
/// When an element cannot be converted.
fn yaml(view: View, metadata: &Value, entries: Vec<SelectedEntry>) -> Result<Body, Status> {
    let (mut empty, opening) = (view.list_head(metadata), view.opening());
    empty.extend_from_slice(&view.list_tail(metadata));
    let list: Value = serde_json::from_slice(&empty).map_err(|e| Status::internal(e.to_string()))?;
    let around = list.as_object().filter(|_| !entries.is_empty());
    let around = around.and_then(|map| yaml::around(map, view.list_field()));
    let Some((before, after)) = around else {
        return Ok(Body::Full(yaml::document(&list).into()));
    };
    let element = move |element: Bytes| {
        let json = [opening, &element].concat();
        match serde_json::from_slice(&json) {
            Ok(value) => Bytes::from(yaml::element(value)),
            Err(error) => {
                tracing::error!(%error, "an element of a list is not valid JSON");
                Bytes::new()
            }
        }
    };
    let elements = elements(view, entries)?.map(element);
    let all = std::iter::once(Bytes::from(before)).chain(elements).chain([Bytes::from(after)]);
    Ok(Body::Lazy(Box::new(Gathered(all))))
}

/// Pieces that are gathered until they are worth sending.
struct Gathered<I>(I);

impl<I: Iterator<Item = Bytes>> Iterator for Gathered<I> {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let mut out = Vec::new();
        while out.len() < CHUNK
            && let Some(piece) = self.0.next()
        {
            out.extend_from_slice(&piece);
        }
        (!out.is_empty()).then(|| out.into())
    }
}

struct Chunks {
    buffer: Vec<u8>,
    /// Comes after the last element.
    tail: Vec<u8>,
    /// Comes before every element.
    opening: &'static [u8],
    elements: Elements,
    /// Comes after the buffer.
    large: Option<Bytes>,
    first: bool,
    done: bool,
}

impl Iterator for Chunks {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.buffer.is_empty()
            && let Some(large) = self.large.take()
        {
            return Some(large);
        }
        while !self.done && self.large.is_none() && self.buffer.len() < CHUNK {
            match self.elements.next() {
                None => {
                    self.buffer.append(&mut self.tail);
                    self.done = true;
                }
                Some(element) => {
                    if !std::mem::take(&mut self.first) {
                        self.buffer.push(b',');
                    }
                    self.buffer.extend_from_slice(self.opening);
                    if element.len() >= LARGE {
                        self.large = Some(element);
                    } else {
                        if self.buffer.capacity() < CHUNK && self.buffer.len() + element.len() > 4096 {
                            self.buffer.reserve(CHUNK + LARGE);
                        }
                        self.buffer.extend_from_slice(&element);
                    }
                }
            }
        }
        if self.buffer.is_empty() {
            return self.large.take();
        }
        Some(Bytes::from(std::mem::take(&mut self.buffer)))
    }
}
