//! The lines of a watch: what informers of unknown resources read, without a type.

use crate::client::{Client, Error};
use bytes::{Bytes, BytesMut};
use http::Method;
use http_body_util::BodyExt;
use kube::client::Body;

/// An open watch, read in batches of whole lines. Each line is one event.
pub struct Watch {
    body: Body,
    buffer: BytesMut,
}

impl Watch {
    /// Opens a watch at a path with its query.
    ///
    /// # Errors
    /// What the server says (410 for a revision that is gone), or a broken transport.
    pub async fn open(client: &Client, uri: &str) -> Result<Self, Error> {
        let response = client.open(Method::GET, uri, "application/json", Bytes::new()).await?;
        Ok(Watch { body: response.into_body(), buffer: BytesMut::new() })
    }

    /// The next lines, as many as arrived whole. `None` once the stream ends.
    pub async fn lines(&mut self) -> Option<Bytes> {
        loop {
            let frame = self.body.frame().await?.ok()?;
            let Ok(data) = frame.into_data() else { continue };
            self.buffer.extend_from_slice(&data);
            if let Some(end) = self.buffer.iter().rposition(|b| *b == b'\n') {
                return Some(self.buffer.split_to(end + 1).freeze());
            }
        }
    }
}
