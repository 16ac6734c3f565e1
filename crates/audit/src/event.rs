//! Events, and how they are written: one line of JSON, upstream's older one line of text, or a list for webhooks.
//!
//! Source: `Event` and `EventList` of audit.k8s.io/v1.
//!
//! Invariant: whatever is written is one line; bodies come in as compact JSON and are copied as they are.

use crate::{Level, Stage};
use bytes::Bytes;
use jiff::Timestamp;
use kaji_meta::{MicroTime, Status, text::quote};
use kaji_resource::UserInfo;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    io::Write,
    net::IpAddr,
    sync::{Arc, OnceLock},
};

/// Bytes of a user agent that are kept.
const MAX_USER_AGENT: usize = 1024;

/// What all events of one request have in common.
#[derive(Clone, Debug)]
pub struct Head {
    /// The client's `Audit-ID`, or one that was made.
    pub audit_id: String,
    /// Path and query as they were sent.
    pub request_uri: String,
    /// API verb, or the method in lower case.
    pub verb: String,
    /// The user; without a name if the request is not authenticated.
    pub user: UserInfo,
    /// Where from, proxies first.
    pub source_ips: Vec<IpAddr>,
    /// What the client calls itself.
    pub user_agent: String,
    /// When the request came.
    pub received: Timestamp,
    /// The above as events write it.
    pub encoded: EncodedHead,
}

/// What all events of a request write alike, encoded for the first of them. A clone is empty, for its head may be changed.
#[derive(Debug, Default)]
pub struct EncodedHead(OnceLock<HeadFields>);

impl Clone for EncodedHead {
    fn clone(&self) -> Self {
        EncodedHead::default()
    }
}

/// Fields of the head, in the order of an event, with commas between them.
#[derive(Debug)]
struct HeadFields {
    /// Up to the user.
    request: Vec<u8>,
    /// What comes after an impersonated user.
    client: Vec<u8>,
    /// The time of arrival.
    received: Vec<u8>,
}

impl Head {
    fn fields(&self) -> &HeadFields {
        self.encoded.0.get_or_init(|| {
            let encode = |fill: &dyn Fn(&mut Fields<'_>)| {
                let mut out = Vec::with_capacity(256);
                fill(&mut Fields { out: &mut out, first: true });
                out
            };
            HeadFields {
                request: encode(&|o| {
                    o.text("requestURI", &self.request_uri);
                    o.text("verb", &self.verb);
                    o.user("user", &self.user);
                }),
                client: encode(&|o| {
                    if !self.source_ips.is_empty() {
                        o.strings("sourceIPs", self.source_ips.iter().map(ToString::to_string));
                    }
                    o.some("userAgent", &self.user_agent);
                }),
                received: encode(&|o| {
                    o.time("requestReceivedTimestamp", self.received);
                }),
            }
        })
    }
}

/// What a request is about. Empty fields are not known, or not given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectRef {
    /// Plural.
    pub resource: String,
    /// Of the path, or else of the object that was sent.
    pub namespace: String,
    /// Likewise.
    pub name: String,
    /// Of the object that was sent.
    pub uid: String,
    /// `""` for core.
    pub api_group: String,
    /// `v1`
    pub api_version: String,
    /// Of the object that was sent.
    pub resource_version: String,
    /// `status`
    pub subresource: String,
}

/// What came of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResponseStatus {
    /// `Success`, `Failure`; empty when an object was answered.
    pub status: String,
    /// In words.
    pub message: String,
    /// In a word.
    pub reason: String,
    /// As in a Status; null without.
    pub details: Value,
    /// HTTP code.
    pub code: u16,
}

impl From<&Status> for ResponseStatus {
    fn from(status: &Status) -> Self {
        ResponseStatus::of(&status.to_value())
    }
}

impl ResponseStatus {
    /// The bounded fields of a Status object.
    pub fn of(status: &Value) -> ResponseStatus {
        let text = |key: &str| status.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let code = status.get("code").and_then(Value::as_u64).unwrap_or_default();
        ResponseStatus {
            status: text("status"),
            message: text("message"),
            reason: text("reason"),
            details: status.get("details").cloned().unwrap_or_default(),
            code: u16::try_from(code).unwrap_or_default(),
        }
    }
}

/// One event. Clones share what is large.
#[derive(Clone, Debug)]
pub struct Event {
    /// How much is recorded.
    pub level: Level,
    /// When.
    pub stage: Stage,
    /// The request.
    pub head: Arc<Head>,
    /// The impersonated user, and the verb that constrains it (KEP-5284; `""` without).
    pub impersonated: Option<Arc<(UserInfo, String)>>,
    /// What it is about; `None` for paths.
    pub object: Option<Arc<ObjectRef>>,
    /// What came of it.
    pub status: Option<Arc<ResponseStatus>>,
    /// What was sent, compact JSON.
    pub request_object: Option<Bytes>,
    /// What was answered, compact JSON.
    pub response_object: Option<Bytes>,
    /// When this stage was reached.
    pub at: Timestamp,
    /// What others have to say about it.
    pub annotations: Arc<BTreeMap<String, String>>,
}

impl Event {
    /// Bytes of the bodies.
    pub fn bodies(&self) -> usize {
        let len = |body: &Option<Bytes>| body.as_ref().map_or(0, Bytes::len);
        len(&self.request_object) + len(&self.response_object)
    }

    /// A line of JSON, with its end.
    pub fn json(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(1024 + self.bodies());
        out.extend_from_slice(br#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","#);
        self.fields(&mut out);
        out.extend_from_slice(b"}\n");
        out
    }

    /// As an item of a list, where kind and version are the list's.
    pub fn item(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(1024 + self.bodies());
        out.push(b'{');
        self.fields(&mut out);
        out.push(b'}');
        out
    }

    fn fields(&self, out: &mut Vec<u8>) {
        let head = self.head.fields();
        let mut o = Fields { out, first: true };
        o.text("level", self.level.as_str());
        o.text("auditID", &self.head.audit_id);
        o.text("stage", self.stage.as_str());
        o.encoded(&head.request);
        if let Some(acting) = &self.impersonated {
            let (user, constraint) = &**acting;
            o.user("impersonatedUser", user);
            if !constraint.is_empty() {
                o.nested("authenticationMetadata", |o| o.text("impersonationConstraint", constraint));
            }
        }
        o.encoded(&head.client);
        if let Some(object) = &self.object {
            o.nested("objectRef", |o| o.object(object));
        }
        if let Some(status) = &self.status {
            o.nested("responseStatus", |o| o.status(status));
        }
        o.raw("requestObject", self.request_object.as_ref());
        o.raw("responseObject", self.response_object.as_ref());
        o.encoded(&head.received);
        o.time("stageTimestamp", self.at);
        if !self.annotations.is_empty() {
            o.nested("annotations", |o| self.annotations.iter().for_each(|(k, v)| o.entry(k, v)));
        }
    }

    /// The older form: one line of text about a part of it, without its end.
    pub fn line(&self) -> String {
        let head = &*self.head;
        let quoted = |list: &[String]| list.iter().map(|g| quote(g)).collect::<Vec<_>>().join(",");
        let (user, groups) = match &head.user {
            u if u.name.is_empty() => ("<none>", "<none>".to_owned()),
            u if u.groups.is_empty() => (u.name.as_str(), "<none>".to_owned()),
            u => (u.name.as_str(), quoted(&u.groups)),
        };
        let (acting, acting_groups) = match self.impersonated.as_deref() {
            None => ("<self>", "<lookup>".to_owned()),
            Some((u, _)) if u.groups.is_empty() => (u.name.as_str(), "<lookup>".to_owned()),
            Some((u, _)) => (u.name.as_str(), quoted(&u.groups)),
        };
        let namespace = self.object.as_ref().map_or("", |o| o.namespace.as_str());
        let namespace = if namespace.is_empty() { "<none>" } else { namespace };
        let ip = head.source_ips.first().map_or_else(|| "<unknown>".into(), ToString::to_string);
        let response = self.status.as_ref().map_or_else(|| "<deferred>".into(), |s| s.code.to_string());
        format!(
            "{} AUDIT: id={} stage={} ip={} method={} user={} groups={} as={} asgroups={} user-agent={} namespace={} uri={} response=\"{response}\"",
            MicroTime::new(head.received).timestamp(),
            quote(&head.audit_id),
            quote(self.stage.as_str()),
            quote(&ip),
            quote(&head.verb),
            quote(user),
            quote(&groups),
            quote(acting),
            quote(&acting_groups),
            quote(&head.user_agent),
            quote(namespace),
            quote(&head.request_uri),
        )
    }
}

/// An `EventList` around items.
pub fn events(items: &[Vec<u8>]) -> Bytes {
    const HEAD: &[u8] = br#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":["#;
    let mut out = Vec::with_capacity(HEAD.len() + items.iter().map(|i| i.len() + 1).sum::<usize>() + 2);
    out.extend_from_slice(HEAD);
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        out.extend_from_slice(item);
    }
    out.extend_from_slice(b"]}");
    out.into()
}

/// `2006-01-02T15:04:05.000000Z`, what [`MicroTime`] prints; `None` before 1970.
fn micro_time(at: Timestamp) -> Option<[u8; 27]> {
    const DAY: u64 = 86_400 * 1_000_000;
    let micros = u64::try_from(at.as_microsecond()).ok()?;
    let (days, mut rest) = (micros / DAY, micros % DAY);
    // The proleptic Gregorian calendar in years that begin with March: a leap day is the last of its year, four centuries have
    // 146,097 days, and five months in turn have 153.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let mut text = *b"0000-00-00T00:00:00.000000Z";
    let mut put = |end: usize, digits: usize, mut number: u64| {
        for place in text[end - digits..end].iter_mut().rev() {
            *place = b'0' + (number % 10) as u8;
            number /= 10;
        }
    };
    put(4, 4, year);
    put(7, 2, month);
    put(10, 2, day);
    put(26, 6, rest % 1_000_000);
    rest /= 1_000_000;
    put(13, 2, rest / 3_600);
    put(16, 2, rest / 60 % 60);
    put(19, 2, rest % 60);
    Some(text)
}

/// Writes the fields of an object.
struct Fields<'a> {
    out: &'a mut Vec<u8>,
    first: bool,
}

impl Fields<'_> {
    fn comma(&mut self) {
        if !self.first {
            self.out.push(b',');
        }
        self.first = false;
    }

    /// The name of a field, which is written as it is.
    fn key(&mut self, key: &'static str) {
        self.comma();
        self.out.push(b'"');
        self.out.extend_from_slice(key.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    /// Fields that were encoded before.
    fn encoded(&mut self, fields: &[u8]) {
        if !fields.is_empty() {
            self.comma();
            self.out.extend_from_slice(fields);
        }
    }

    /// The key of a map, which may hold anything.
    fn entry_key(&mut self, key: &str) {
        self.comma();
        self.string(key);
        self.out.push(b':');
    }

    fn entry(&mut self, key: &str, text: &str) {
        self.entry_key(key);
        self.string(text);
    }

    fn entry_of_strings(&mut self, key: &str, list: &[String]) {
        self.entry_key(key);
        self.list(list);
    }

    /// A string with the escapes of Go's encoder, which upstream's log has, too.
    fn string(&mut self, text: &str) {
        kaji_meta::json::write_string(self.out, text);
    }

    fn text(&mut self, key: &'static str, text: &str) {
        self.key(key);
        self.string(text);
    }

    /// Each event has two or three: they are written without the machinery of formatting.
    fn time(&mut self, key: &'static str, at: Timestamp) {
        match micro_time(at) {
            Some(text) => {
                self.key(key);
                self.out.push(b'"');
                self.out.extend_from_slice(&text);
                self.out.push(b'"');
            }
            None => self.text(key, &MicroTime::new(at).to_string()),
        }
    }

    /// Left out when empty.
    fn some(&mut self, key: &'static str, text: &str) {
        if !text.is_empty() {
            self.text(key, text);
        }
    }

    fn nested(&mut self, key: &'static str, fill: impl FnOnce(&mut Fields<'_>)) {
        self.key(key);
        self.out.push(b'{');
        fill(&mut Fields { out: self.out, first: true });
        self.out.push(b'}');
    }

    fn strings(&mut self, key: &'static str, list: impl IntoIterator<Item = impl AsRef<str>>) {
        self.key(key);
        self.list(list);
    }

    fn list(&mut self, list: impl IntoIterator<Item = impl AsRef<str>>) {
        self.out.push(b'[');
        for (i, text) in list.into_iter().enumerate() {
            if i > 0 {
                self.out.push(b',');
            }
            self.string(text.as_ref());
        }
        self.out.push(b']');
    }

    fn raw(&mut self, key: &'static str, json: Option<&Bytes>) {
        if let Some(json) = json {
            self.key(key);
            self.out.extend_from_slice(json);
        }
    }

    fn user(&mut self, key: &'static str, user: &UserInfo) {
        self.nested(key, |o| {
            o.some("username", &user.name);
            o.some("uid", &user.uid);
            if !user.groups.is_empty() {
                o.strings("groups", &user.groups);
            }
            if !user.extra.is_empty() {
                o.nested("extra", |o| user.extra.iter().for_each(|(k, v)| o.entry_of_strings(k, v)));
            }
        });
    }

    fn object(&mut self, object: &ObjectRef) {
        self.some("resource", &object.resource);
        self.some("namespace", &object.namespace);
        self.some("name", &object.name);
        self.some("uid", &object.uid);
        self.some("apiGroup", &object.api_group);
        self.some("apiVersion", &object.api_version);
        self.some("resourceVersion", &object.resource_version);
        self.some("subresource", &object.subresource);
    }

    fn status(&mut self, status: &ResponseStatus) {
        // A Status is a list's kin, and its metadata are never left out.
        self.nested("metadata", |_| ());
        self.some("status", &status.status);
        self.some("message", &status.message);
        self.some("reason", &status.reason);
        if !status.details.is_null() {
            self.key("details");
            let _ = serde_json::to_writer(&mut *self.out, &status.details);
        }
        if status.code != 0 {
            self.key("code");
            let _ = write!(self.out, "{}", status.code);
        }
    }
}

/// Where a request comes from: what proxies say, then the connection itself, which alone can be trusted.
pub fn source_ips(forwarded_for: Option<&str>, real_ip: Option<&str>, remote: IpAddr) -> Vec<IpAddr> {
    let parse = |text: &str| kaji_meta::validation::parse_ip_sloppy(text).map(|ip| ip.to_canonical());
    let mut ips: Vec<IpAddr> = forwarded_for
        .into_iter()
        .flat_map(|list| list.split(','))
        .filter_map(|ip| parse(ip.trim()))
        .collect();
    if let Some(ip) = real_ip.and_then(parse)
        && !ips.contains(&ip)
    {
        ips.push(ip);
    }
    let remote = remote.to_canonical();
    if ips.last() != Some(&remote) {
        ips.push(remote);
    }
    ips
}

/// A user agent, shortened if it is very long.
pub fn user_agent(text: &str) -> String {
    if text.len() <= MAX_USER_AGENT {
        return text.to_owned();
    }
    let end = (0..=MAX_USER_AGENT).rev().find(|&i| text.is_char_boundary(i)).unwrap_or_default();
    format!("{}...TRUNCATED", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn same(at: Timestamp) {
        let text = micro_time(at).map(|text| String::from_utf8(text.to_vec()).unwrap());
        assert_eq!(text.as_deref(), Some(MicroTime::new(at).to_string().as_str()));
    }

    #[test]
    fn times_around_leap_days_and_years() {
        for text in [
            "1970-01-01T00:00:00Z",
            "1972-02-29T23:59:59.999999999Z",
            "2000-02-29T12:00:00.000001Z",
            "2000-03-01T00:00:00Z",
            "2024-12-31T23:59:59.5Z",
            "2100-02-28T23:59:59Z",
            "2100-03-01T00:00:00Z",
            "9999-12-30T22:00:00Z",
        ] {
            same(text.parse().unwrap());
        }
        assert_eq!(micro_time("1969-12-31T23:59:59Z".parse().unwrap()), None);
    }

    proptest! {
        #[test]
        fn prints_times_as_micro_time_does(seconds in 0..253_402_207_200_i64, nanos in 0..1_000_000_000_i32) {
            same(Timestamp::new(seconds, nanos).unwrap());
        }
    }
}
