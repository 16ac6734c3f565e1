//! The engine's answers: a code, a content type, warnings, notes for the audit log and a body that is whole or streamed.

use bytes::Bytes;
use futures_util::stream::BoxStream;
use kaji_meta::Status;
use kaji_resource::Connection;
use kaji_schema::order;

/// Pieces of a whole, made as they are asked for.
pub type ChunkIter = Box<dyn Iterator<Item = Bytes> + Send + Sync>;

/// A body.
pub enum Body {
    /// All there is.
    Full(Bytes),
    /// Pieces of a whole, each already encoded.
    Chunks(Vec<Bytes>),
    /// A large list, produced piece by piece (about 64 KiB each) from a snapshot while it is being sent, so that it
    /// never lies in memory as a whole. Never blocks.
    Lazy(ChunkIter),
    /// Events as they come. The stream ends on timeout, on shutdown, or after an ERROR event.
    Watch(BoxStream<'static, Bytes>),
    /// None yet: what to connect the client to, which the HTTP edge does.
    Connect(Box<Connection>),
}

/// An answer.
pub struct ApiResponse {
    /// HTTP code.
    pub code: u16,
    /// `Content-Type`
    pub content_type: &'static str,
    /// Texts for `Warning: 299 - "…"` headers.
    pub warnings: Vec<String>,
    /// What the audit log is to say besides: keys and values.
    pub annotations: Vec<(String, String)>,
    /// The body.
    pub body: Body,
}

impl ApiResponse {
    /// A JSON answer from a value, with members in the order of its kind.
    pub fn json(code: u16, value: &serde_json::Value) -> Self {
        let mut body = Vec::new();
        order::write_document(&mut body, value);
        body.push(b'\n');
        ApiResponse {
            code,
            content_type: "application/json",
            warnings: vec![],
            annotations: vec![],
            body: Body::Full(Bytes::from(body)),
        }
    }
}

impl From<Status> for ApiResponse {
    fn from(status: Status) -> Self {
        ApiResponse::json(status.code, &status.to_value())
    }
}

impl Body {
    /// The whole body in one piece; `None` for a watch or a connection.
    pub fn into_bytes(self) -> Option<Bytes> {
        let join = |chunks: &mut dyn Iterator<Item = Bytes>| {
            let mut out = Vec::new();
            chunks.for_each(|c| out.extend_from_slice(&c));
            Bytes::from(out)
        };
        match self {
            Body::Full(bytes) => Some(bytes),
            Body::Chunks(chunks) => Some(join(&mut chunks.into_iter())),
            Body::Lazy(mut chunks) => Some(join(&mut chunks)),
            Body::Watch(_) | Body::Connect(_) => None,
        }
    }
}
