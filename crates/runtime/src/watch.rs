//! The lines of a watch, for watches of resources that discovery finds.
//!
//! Invariant: a malformed line is an error, never skipped.

use crate::client::{Client, Error};
use bytes::{Bytes, BytesMut};
use http::Method;
use http_body_util::BodyExt;
use kaji_meta::json::Reader;
use kube::client::Body;
use std::borrow::Cow;

/// An open watch, read in batches of whole lines. Each line is one event.
pub struct Watch {
    body: Body,
    buffer: BytesMut,
}

impl Watch {
    /// Opens a watch at a path with its query.
    ///
    /// # Errors
    /// The server's error (410 for a compacted revision), or a transport failure.
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

/// The events in whole lines: what happened, and the object's text.
pub fn events(lines: &[u8]) -> impl Iterator<Item = Result<(Cow<'_, str>, &str), Error>> {
    let broken = || Error::Decode("a watch sent a malformed event".into());
    let mut reader = std::str::from_utf8(lines).map(Reader::new).map_err(|_| broken());
    std::iter::from_fn(move || match &mut reader {
        Ok(lines) => {
            lines.peek()?;
            let event = event(lines).ok_or_else(broken);
            if event.is_err() {
                *lines = Reader::new("");
            }
            Some(event)
        }
        Err(_) => std::mem::replace(&mut reader, Ok(Reader::new(""))).err().map(Err),
    })
}

fn event<'a>(lines: &mut Reader<'a>) -> Option<(Cow<'a, str>, &'a str)> {
    let (mut kind, mut object) = (None, None);
    if !lines.take(b'{') {
        return None;
    }
    while let Some(key) = lines.key().ok()? {
        match &*key {
            "type" => kind = Some(lines.string().ok()?),
            "object" => object = Some(lines.value().ok()?),
            _ => drop(lines.value().ok()?),
        }
    }
    Some((kind?, object?))
}

#[cfg(test)]
mod tests {
    use super::events;
    use expect_test::expect;

    #[test]
    fn splits_events() {
        let show = |lines: &[u8]| {
            let event = |e| format!("{e:?}\n");
            events(lines).map(event).collect::<String>()
        };
        expect![[r#"
            Ok(("ADDED", "{\"a\":\"}\"}"))
            Ok(("DELETED", "{ }"))
        "#]]
        .assert_eq(&show(b"{\"type\":\"ADDED\",\"object\":{\"a\":\"}\"}}\n\n{\"object\": { }, \"more\":[1], \"type\":\"DELETED\"}\n"));
        expect![[r#"
            Ok(("A", "1"))
            Err(Decode("a watch sent a malformed event"))
        "#]]
        .assert_eq(&show(
            b"{\"type\":\"A\",\"object\":1}\n{\"type\":\"B\"}\n{\"type\":\"A\",\"object\":1}\n",
        ));
        expect![[r#"
            Err(Decode("a watch sent a malformed event"))
        "#]]
        .assert_eq(&show(b"\xff\n"));
        assert_eq!(show(b"\n"), "");
    }
}
