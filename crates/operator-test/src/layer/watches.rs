//! Watches through the layer: events are counted, held back, and cut off with 410.
//!
//! Invariants: an event is passed on whole or not at all; bytes that are no lines of JSON are passed on as they come.

use super::{FaultLayer, main_resource};
use crate::{call::Call, fault::FaultKind};
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt, stream};
use http::{Response, header};
use http_body_util::BodyExt;
use kaji_meta::Status;
use kaji_server::ResponseBody;
use serde::Deserialize;
use serde_json::json;
use std::{collections::VecDeque, sync::Arc};
use tokio::time::{Instant, sleep_until};

/// The longest event that is put together of pieces.
const LONGEST: usize = 16 << 20;

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    sort: String,
}

/// A watch under way.
struct Watch {
    layer: Arc<FaultLayer>,
    call: Call,
    body: ResponseBody,
    began: Instant,
    partial: BytesMut,
    lines: VecDeque<Bytes>,
    ended: bool,
}

/// Passes a watch on through the layer.
pub fn follow(
    layer: Arc<FaultLayer>,
    call: Call,
    response: Response<ResponseBody>,
) -> Response<ResponseBody> {
    let json = response.headers().get(header::CONTENT_TYPE).is_some_and(|value| {
        value.to_str().is_ok_and(|value| value.starts_with("application/json") && !value.contains("protobuf"))
    });
    if !response.status().is_success() || !json {
        return response;
    }
    response.map(|body| {
        let watch = Watch {
            layer,
            call,
            body,
            began: Instant::now(),
            partial: BytesMut::new(),
            lines: VecDeque::new(),
            ended: false,
        };
        ResponseBody::Stream(watch.stream().boxed())
    })
}

impl Watch {
    fn stream(self) -> impl Stream<Item = Bytes> + Send {
        stream::unfold(self, |mut watch| async move { watch.next().await.map(|line| (line, watch)) })
    }

    async fn next(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        let line = self.line().await?;
        if is_event(&line) {
            let (_, fault, _) = self.layer.begin(&self.call);
            if fault == Some(FaultKind::SkippedStates) {
                self.layer.hold(&self.call, true, self.layer.delay);
            }
        }
        while let Some((until, expires)) = self.layer.held(&self.call, self.began) {
            sleep_until(until).await;
            if expires {
                self.ended = true;
                return Some(expired());
            }
        }
        Some(line)
    }

    /// The next line, or bytes that are none.
    async fn line(&mut self) -> Option<Bytes> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Some(line);
            }
            let frame = self.body.frame().await;
            let Some(piece) = frame.and_then(Result::ok).and_then(|frame| frame.into_data().ok()) else {
                self.ended = true;
                let rest = self.partial.split().freeze();
                return (!rest.is_empty()).then_some(rest);
            };
            self.partial.extend_from_slice(&piece);
            while let Some(end) = self.partial.iter().position(|byte| *byte == b'\n') {
                self.lines.push_back(self.partial.split_to(end + 1).freeze());
            }
            if self.partial.len() > LONGEST {
                return Some(self.partial.split().freeze());
            }
        }
    }
}

impl FaultLayer {
    /// Until when a watch that began at `began` waits, and whether it ends then.
    fn held(&self, call: &Call, began: Instant) -> Option<(Instant, bool)> {
        let (state, now) = (self.state(), Instant::now());
        let concerns = |held: &&super::Held| {
            held.client == call.client && held.resource == main_resource(&call.resource) && held.until > now
        };
        let held = state.held.iter().filter(concerns).max_by_key(|held| held.until)?;
        Some((held.until, held.expires && began <= held.since))
    }
}

fn is_event(line: &[u8]) -> bool {
    serde_json::from_slice::<Event>(line)
        .is_ok_and(|event| matches!(&*event.sort, "ADDED" | "MODIFIED" | "DELETED"))
}

fn expired() -> Bytes {
    let status = Status::resource_expired("The resourceVersion for the provided watch is too old.");
    format!("{}\n", json!({"type": "ERROR", "object": status.to_value()})).into()
}
