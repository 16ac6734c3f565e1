//! Events for tests of backends.

use crate::{EncodedHead, Event, Head, Level, Stage};
use jiff::Timestamp;
use kaji_resource::UserInfo;
use std::sync::Arc;

/// An event with this audit ID and a request body of `body` bytes; no body for 0.
pub fn event(id: &str, body: usize) -> Arc<Event> {
    let head = Head {
        audit_id: id.into(),
        request_uri: "/".into(),
        verb: "get".into(),
        user: UserInfo::default(),
        source_ips: vec![],
        user_agent: String::new(),
        received: Timestamp::UNIX_EPOCH,
        encoded: EncodedHead::default(),
    };
    Arc::new(Event {
        level: Level::Metadata,
        stage: Stage::ResponseComplete,
        head: Arc::new(head),
        impersonated: None,
        object: None,
        status: None,
        request_object: (body > 0).then(|| vec![b' '; body].into()),
        response_object: None,
        at: Timestamp::UNIX_EPOCH,
        annotations: Arc::default(),
    })
}
