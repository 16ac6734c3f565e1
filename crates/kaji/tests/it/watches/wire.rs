//! Requests over TLS, and what comes back in each representation, brought to one form.

use super::model::{Kind, Shown, Version};
use bytes::{Buf, Bytes};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use http_body_util::BodyExt;
use serde_json::Value;

/// A representation of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Whole objects in JSON.
    Json,
    /// Tables.
    Table,
    /// Metadata in JSON.
    Partial,
    /// Whole objects in protobuf.
    Protobuf,
    /// Metadata in protobuf.
    PartialProtobuf,
}

impl Form {
    /// All of them.
    pub const ALL: [Form; 5] =
        [Form::Json, Form::Table, Form::Partial, Form::Protobuf, Form::PartialProtobuf];

    fn accept(self) -> &'static str {
        match self {
            Form::Json => "application/json",
            Form::Table => "application/json;as=Table;g=meta.k8s.io;v=v1",
            Form::Partial => "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
            Form::Protobuf => "application/vnd.kubernetes.protobuf",
            Form::PartialProtobuf => {
                "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
            }
        }
    }

    fn list_accept(self) -> &'static str {
        match self {
            Form::Partial => "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
            Form::PartialProtobuf => {
                "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
            }
            other => other.accept(),
        }
    }

    fn binary(self) -> bool {
        matches!(self, Form::Protobuf | Form::PartialProtobuf)
    }
}

/// What a watch sends.
#[derive(Debug)]
pub enum Event {
    /// Something about an object.
    Told(Kind, Version),
    /// A bookmark, and whether it ends the initial events.
    Bookmark(u64, bool),
    /// An error's code and message.
    Error(u64, String),
}

/// A list, or a part of one.
#[derive(Debug, Default)]
pub struct Page {
    /// Its resourceVersion.
    pub revision: u64,
    /// Its items.
    pub items: Vec<Version>,
    /// The token of the next part.
    pub token: String,
}

/// A connection that broke, or an answer that says no.
#[derive(Debug)]
pub enum Failure {
    /// No whole answer came.
    Broken,
    /// The code and body of a refusal.
    Refused(u16, String),
}

/// Sends a request and gives back its answer's body as it comes.
async fn open(
    client: &kube::Client,
    request: http::Request<kube::client::Body>,
) -> Result<kube::client::Body, Failure> {
    let answer = client.send(request).await.map_err(|_| Failure::Broken)?;
    let code = answer.status().as_u16();
    if code < 300 {
        return Ok(answer.into_body());
    }
    let body = answer.into_body().collect_bytes().await.map_err(|_| Failure::Broken)?;
    Err(Failure::Refused(code, String::from_utf8_lossy(&body).into_owned()))
}

/// A request with a body in JSON (`Null`: none), answered in JSON.
pub async fn send(client: &kube::Client, method: &str, path: &str, body: &Value) -> Result<Value, Failure> {
    let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let content = if body.is_null() { vec![] } else { body.to_string().into_bytes() };
    let request = http::Request::builder().method(method).uri(path).header("content-type", kind);
    let body = open(client, request.body(content.into()).unwrap()).await?;
    let bytes = body.collect_bytes().await.map_err(|_| Failure::Broken)?;
    serde_json::from_slice(&bytes).map_err(|_| Failure::Broken)
}

/// A list in a representation.
pub async fn list(client: &kube::Client, path: &str, form: Form, field: &str) -> Result<Page, Failure> {
    let request = http::Request::get(path).header("accept", form.list_accept());
    let body = open(client, request.body(vec![].into()).unwrap()).await?;
    let bytes = body.collect_bytes().await.map_err(|_| Failure::Broken)?;
    if form.binary() {
        return Ok(protobuf_page(&bytes));
    }
    let value: Value = serde_json::from_slice(&bytes).map_err(|_| Failure::Broken)?;
    let items =
        value[if form == Form::Table { "rows" } else { "items" }].as_array().cloned().unwrap_or_default();
    let object = |item: &Value| version(if form == Form::Table { &item["object"] } else { item }, field);
    Ok(Page {
        revision: number(&value["metadata"]["resourceVersion"]),
        items: items.iter().map(object).collect(),
        token: value["metadata"]["continue"].as_str().unwrap_or_default().to_owned(),
    })
}

/// An open watch.
pub struct Watch {
    body: BoxStream<'static, Option<Bytes>>,
    buffer: Vec<u8>,
    form: Form,
    field: &'static str,
}

impl Watch {
    /// Begins one.
    pub async fn open(
        client: &kube::Client,
        path: &str,
        form: Form,
        field: &'static str,
    ) -> Result<Watch, Failure> {
        let request = http::Request::get(path).header("accept", form.accept());
        let body = open(client, request.body(vec![].into()).unwrap()).await?;
        let body = body.into_data_stream().map(Result::ok).boxed();
        Ok(Watch { body, buffer: vec![], form, field })
    }

    /// The next event; `None` when there are no more, or the connection is broken.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.take() {
                return Some(event);
            }
            let piece = self.body.next().await??;
            self.buffer.extend_from_slice(&piece);
        }
    }

    fn take(&mut self) -> Option<Event> {
        if self.form.binary() {
            let length = self.buffer.get(..4)?.try_into().map(u32::from_be_bytes).unwrap() as usize;
            let frame = self.buffer.get(4..4 + length)?.to_vec();
            self.buffer.drain(..4 + length);
            return Some(protobuf_event(&frame));
        }
        let end = self.buffer.iter().position(|b| *b == b'\n')?;
        let line: Vec<u8> = self.buffer.drain(..=end).collect();
        let event: Value = serde_json::from_slice(&line).unwrap();
        let mut object = &event["object"];
        let kind = event["type"].as_str().unwrap().to_owned();
        if kind == "ERROR" {
            return Some(Event::Error(number(&object["code"]), object.to_string()));
        }
        if self.form == Form::Table {
            object = &object["rows"][0]["object"];
        }
        let v = version(object, self.field);
        let end = object["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true";
        Some(told(&kind, v, end))
    }
}

fn told(kind: &str, v: Version, end: bool) -> Event {
    match kind {
        "ADDED" => Event::Told(Kind::Added, v),
        "MODIFIED" => Event::Told(Kind::Modified, v),
        "DELETED" => Event::Told(Kind::Deleted, v),
        "BOOKMARK" => Event::Bookmark(v.shown.revision, end),
        other => Event::Error(0, format!("an event of type {other}")),
    }
}

/// A number, or one in a string.
pub fn number(value: &Value) -> u64 {
    value.as_str().and_then(|s| s.parse().ok()).or(value.as_u64()).unwrap_or_default()
}

/// An object, or its metadata alone, in JSON.
pub fn version(object: &Value, field: &str) -> Version {
    let meta = &object["metadata"];
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let color = field.split('.').fold(object, |v, key| &v[key]);
    Version {
        shown: Shown {
            key: format!("{}/{}", text(&meta["namespace"]), text(&meta["name"])),
            uid: text(&meta["uid"]),
            revision: number(&meta["resourceVersion"]),
            seq: number(&meta["labels"]["seq"]),
        },
        app: meta["labels"]["app"].as_str().map(str::to_owned),
        color: text(color),
    }
}

/// The fields of a message that are bytes, with their numbers.
fn fields(mut message: &[u8]) -> Vec<(u64, &[u8])> {
    let mut found = vec![];
    while !message.is_empty() {
        let tag = varint(&mut message);
        match tag & 7 {
            0 => drop(varint(&mut message)),
            1 => message.advance(8),
            2 => {
                let length = varint(&mut message) as usize;
                let (value, rest) = message.split_at(length);
                found.push((tag >> 3, value));
                message = rest;
            }
            5 => message.advance(4),
            other => panic!("wire type {other}"),
        }
    }
    found
}

fn varint(message: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = message.get_u8();
        value |= u64::from(byte & 127) << shift;
        if byte < 128 {
            return value;
        }
    }
    panic!("a number of more than 64 bits")
}

fn field(message: &[u8], number: u64) -> &[u8] {
    fields(message).into_iter().find(|(n, _)| *n == number).map_or(&[], |(_, value)| value)
}

fn text(message: &[u8], number: u64) -> String {
    String::from_utf8(field(message, number).to_vec()).unwrap()
}

/// What is in an envelope.
fn unwrapped(envelope: &[u8]) -> &[u8] {
    envelope.strip_prefix(b"k8s\0").map_or(envelope, |unknown| field(unknown, 2))
}

/// A map's value.
fn entry(meta: &[u8], map: u64, key: &str) -> Option<String> {
    let entries = fields(meta).into_iter().filter(|(n, _)| *n == map);
    entries.map(|(_, e)| e).find(|e| field(e, 1) == key.as_bytes()).map(|e| text(e, 2))
}

/// An object, of which the first field is its metadata.
fn protobuf_version(object: &[u8]) -> Version {
    let meta = field(object, 1);
    let seq = entry(meta, 11, "seq").and_then(|s| s.parse().ok());
    Version {
        shown: Shown {
            key: format!("{}/{}", text(meta, 3), text(meta, 1)),
            uid: text(meta, 5),
            revision: text(meta, 6).parse().unwrap_or_default(),
            seq: seq.unwrap_or_default(),
        },
        ..Version::default()
    }
}

fn protobuf_event(event: &[u8]) -> Event {
    let kind = text(event, 1);
    let object = unwrapped(field(field(event, 2), 1));
    if kind == "ERROR" {
        let code = if text(object, 4) == "Expired" { 410 } else { 0 };
        return Event::Error(code, text(object, 3));
    }
    let end = entry(field(object, 1), 12, "k8s.io/initial-events-end").is_some();
    told(&kind, protobuf_version(object), end)
}

fn protobuf_page(bytes: &[u8]) -> Page {
    let list = unwrapped(bytes);
    let meta = field(list, 1);
    let items = fields(list).into_iter().filter(|(n, _)| *n == 2);
    Page {
        revision: text(meta, 2).parse().unwrap_or_default(),
        items: items.map(|(_, item)| protobuf_version(item)).collect(),
        token: text(meta, 3),
    }
}
