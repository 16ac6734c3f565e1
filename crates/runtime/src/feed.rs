//! Where informers get objects from: the present objects of a collection as encoded bytes, then its changes.
//!
//! Two implementations: [`ClientFeed`] lists and watches through a [`Client`], across processes; a process that contains the
//! server hands in one of its own ([`Client::with_feed`]), which shares the bytes of the server's watch cache.
//!
//! Invariants, of every implementation:
//! - A list is one snapshot; the events of a watch from its revision are those after it, none missing, none repeated.
//! - Each list and each watch is authorized when it is opened, as the request that it stands for, and a watch ends at the
//!   deadline that the server gives to watches. So rights that an account loses end its feed as they end its requests.
//! - Objects are handed over one at a time: a list never lies in memory as a whole.

mod split;

use crate::{
    client::{Client, Error, METADATA_LIST, METADATA_ONLY, escape},
    watch,
};
use bytes::{Bytes, BytesMut};
use futures_util::{
    StreamExt, TryStreamExt,
    future::{BoxFuture, ready},
    stream::{self, BoxStream},
};
use http::Method;
use http_body_util::BodyExt;
use split::ListSplitter;

/// A collection of objects, or those of its objects that selectors match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collection {
    /// The path, such as `/api/v1/pods`.
    pub path: String,
    /// Which objects.
    pub selection: Selection,
    /// Whether objects are `PartialObjectMetadata`.
    pub metadata_only: bool,
}

/// Which objects of a collection. `""` selects every object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// A field selector.
    pub fields: String,
    /// A label selector.
    pub labels: String,
}

impl Selection {
    /// Those that a field selector matches.
    pub fn by_fields(fields: impl Into<String>) -> Selection {
        Selection { fields: fields.into(), ..Selection::default() }
    }

    /// Those that a label selector matches.
    pub fn by_labels(labels: impl Into<String>) -> Selection {
        Selection { labels: labels.into(), ..Selection::default() }
    }

    fn query(&self) -> Vec<String> {
        let both = [("fieldSelector", &self.fields), ("labelSelector", &self.labels)];
        let given = both.into_iter().filter(|(_, selector)| !selector.is_empty());
        given.map(|(name, selector)| format!("{name}={}", escape(selector))).collect()
    }
}

impl Collection {
    /// Path and query of the list.
    pub fn list_uri(&self) -> String {
        match self.selection.query().join("&") {
            query if query.is_empty() => self.path.clone(),
            query => format!("{}?{query}", self.path),
        }
    }

    /// Path and query of the watch from a revision.
    pub fn watch_uri(&self, from: &str) -> String {
        let mut query = self.selection.query();
        query.push(format!("watch=true&allowWatchBookmarks=true&resourceVersion={}", escape(from)));
        format!("{}?{}", self.path, query.join("&"))
    }

    /// The `Accept` of the list.
    pub fn list_accept(&self) -> &'static str {
        if self.metadata_only { METADATA_LIST } else { "application/json" }
    }

    /// The `Accept` of the watch.
    pub fn watch_accept(&self) -> &'static str {
        if self.metadata_only { METADATA_ONLY } else { "application/json" }
    }
}

/// A part of a list, in JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listed {
    /// The list's metadata, once, before or after its objects.
    Metadata(Bytes),
    /// An object.
    Object(Bytes),
}

/// An event of a watch, with its object in JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectEvent {
    /// An object exists and is this.
    Changed(Bytes),
    /// An object was deleted; its last state.
    Deleted(Bytes),
    /// Everything up to the object's revision has been sent.
    Bookmark(Bytes),
    /// The watch failed with this Status.
    Failed(Bytes),
}

/// The parts of a list. A list that ends early ends with an error.
pub type ObjectList = BoxStream<'static, Result<Listed, Error>>;
/// The events of a watch, in batches of those that arrived together.
pub type ObjectEvents = BoxStream<'static, Result<Vec<ObjectEvent>, Error>>;
/// The pieces of a response's body.
pub type Frames = BoxStream<'static, Result<Bytes, Error>>;

/// A source of objects. `agent` names the client's component, and so the account that is authorized.
pub trait ObjectFeed: Send + Sync {
    /// Begins a list.
    ///
    /// # Errors
    /// The server's refusal, or a failure of the transport.
    fn list<'a>(
        &'a self,
        agent: &'a str,
        collection: &'a Collection,
    ) -> BoxFuture<'a, Result<ObjectList, Error>>;

    /// Begins a watch of what happens after a revision.
    ///
    /// # Errors
    /// The server's refusal (410 for a compacted revision), or a failure of the transport.
    fn watch<'a>(
        &'a self,
        agent: &'a str,
        collection: &'a Collection,
        from: &'a str,
    ) -> BoxFuture<'a, Result<ObjectEvents, Error>>;
}

/// Lists and watches through a client.
pub struct ClientFeed(Client);

impl ClientFeed {
    /// Over a client's transport.
    pub fn new(client: Client) -> Self {
        ClientFeed(client)
    }

    async fn open(&self, agent: &str, accept: &'static str, uri: &str) -> Result<Frames, Error> {
        let client = self.0.named(agent).accepting(accept);
        let response = client.open(Method::GET, uri, "application/json", Bytes::new()).await?;
        let frames = response.into_body().into_data_stream();
        Ok(frames.map_err(|error| Error::Transport(error.to_string())).boxed())
    }
}

impl ObjectFeed for ClientFeed {
    fn list<'a>(
        &'a self,
        agent: &'a str,
        collection: &'a Collection,
    ) -> BoxFuture<'a, Result<ObjectList, Error>> {
        Box::pin(async move {
            let frames = self.open(agent, collection.list_accept(), &collection.list_uri()).await?;
            Ok(split_list(frames))
        })
    }

    fn watch<'a>(
        &'a self,
        agent: &'a str,
        collection: &'a Collection,
        from: &'a str,
    ) -> BoxFuture<'a, Result<ObjectEvents, Error>> {
        Box::pin(async move {
            let frames = self.open(agent, collection.watch_accept(), &collection.watch_uri(from)).await?;
            Ok(split_events(frames))
        })
    }
}

/// The parts of a list in JSON, in frames that end anywhere.
pub fn split_list(frames: Frames) -> ObjectList {
    let begun = (frames, ListSplitter::default());
    let batches = stream::try_unfold(begun, |(mut frames, mut splitter)| async move {
        match frames.try_next().await? {
            Some(data) => Ok(Some((splitter.push(&data)?, (frames, splitter)))),
            None => splitter.end().map(|()| None),
        }
    });
    batches.map_ok(|parts: Vec<Listed>| stream::iter(parts.into_iter().map(Ok))).try_flatten().boxed()
}

/// The events of a watch in JSON, in frames that end anywhere. A transport that fails ends the watch.
pub fn split_events(frames: Frames) -> ObjectEvents {
    let batches = stream::unfold((frames, BytesMut::new()), |(mut frames, mut buffer)| async move {
        loop {
            let data = frames.next().await?.ok()?;
            // A frame of whole lines is not copied.
            let lines = if buffer.is_empty() && data.ends_with(b"\n") {
                data
            } else {
                buffer.extend_from_slice(&data);
                let Some(end) = buffer.iter().rposition(|b| *b == b'\n') else { continue };
                buffer.split_to(end + 1).freeze()
            };
            return Some((parse_events(&lines), (frames, buffer)));
        }
    });
    batches.boxed()
}

/// The parts of a list of which each frame is one object; the first is the list's metadata.
pub fn separate_list(frames: Frames) -> ObjectList {
    let parts = frames.enumerate().map(|(index, frame)| {
        frame.map(|frame| if index == 0 { Listed::Metadata(frame) } else { Listed::Object(frame) })
    });
    parts.boxed()
}

/// Events of a batch, of those that are ready.
const BATCH: usize = 256;

/// The events of a watch of which each frame is one event. A transport that fails ends the watch.
pub fn separate_events(frames: Frames) -> ObjectEvents {
    let frames = frames.take_while(|frame| ready(frame.is_ok())).filter_map(|frame| ready(frame.ok()));
    frames.ready_chunks(BATCH).map(|batch| batch.iter().map(parse_event).collect()).boxed()
}

/// The frame's object without copying, for the frames that the server's watch cache keeps.
fn parse_event(frame: &Bytes) -> Result<ObjectEvent, Error> {
    const CHANGED: [&[u8]; 2] = [br#"{"type":"ADDED","object":"#, br#"{"type":"MODIFIED","object":"#];
    const DELETED: &[u8] = br#"{"type":"DELETED","object":"#;
    const TAIL: &[u8] = b"}\n";
    let object = |head: &[u8]| frame.slice(head.len()..frame.len() - TAIL.len());
    if frame.ends_with(TAIL) {
        if let Some(head) = CHANGED.iter().find(|head| frame.starts_with(head)) {
            return Ok(ObjectEvent::Changed(object(head)));
        }
        if frame.starts_with(DELETED) {
            return Ok(ObjectEvent::Deleted(object(DELETED)));
        }
    }
    let mut events = parse_events(frame)?;
    match events.pop() {
        Some(event) if events.is_empty() => Ok(event),
        _ => Err(Error::Decode("a frame of a watch is not one event".into())),
    }
}

fn parse_events(lines: &Bytes) -> Result<Vec<ObjectEvent>, Error> {
    let parse = |event: Result<(std::borrow::Cow<'_, str>, &str), Error>| {
        let (kind, object) = event?;
        let object = lines.slice_ref(object.as_bytes());
        Ok(match &*kind {
            "ERROR" => ObjectEvent::Failed(object),
            "BOOKMARK" => ObjectEvent::Bookmark(object),
            "DELETED" => ObjectEvent::Deleted(object),
            _ => ObjectEvent::Changed(object),
        })
    };
    watch::events(lines).map(parse).collect()
}

/// The failure that a response with an error code stands for.
pub async fn refusal(code: u16, mut frames: Frames) -> Error {
    /// Bytes of a refusal's body that are read.
    const LONGEST: usize = 1 << 20;
    let mut body = vec![];
    while let Some(Ok(data)) = frames.next().await
        && body.len() < LONGEST
    {
        body.extend_from_slice(&data);
    }
    Error::of_response(code, &body)
}

#[cfg(test)]
mod tests;
