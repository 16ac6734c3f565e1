//! The storage format: JSON that begins `{"apiVersion":…,"kind":…,"metadata":{`, without `metadata.resourceVersion`.
//!
//! Invariant: because those three come first and in this order, a revision is spliced into (or replaced in) the bytes
//! of an object without decoding it. Values from elsewhere that are not laid out so take a slower path with the
//! same result.

use bytes::Bytes;
use kaji_meta::json;
use kaji_store::Revision;
use serde_json::{Map, Value};
use std::cell::RefCell;

const META: &[u8] = b"\"metadata\":{";
const RV: &[u8] = b"\"resourceVersion\":\"";
/// What a resourceVersion of one digit adds to an object.
pub(crate) const REVISION_BYTES: usize = RV.len() + "1\",".len();

/// `v1` in core, `apps/v1` elsewhere.
pub fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// Encodes an object for the store: first keys first, no resourceVersion.
pub fn encode(object: &Value) -> Bytes {
    Bytes::from(write(object, false))
}

/// Encodes an object for a client in the same order, with whatever resourceVersion it has.
pub fn encode_object(object: &Value) -> Bytes {
    Bytes::from(write(object, true))
}

thread_local! {
    /// Where objects are encoded before they are copied into memory of exactly their size.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What a thread's scratch memory may keep between objects.
const SCRATCH_BYTES: usize = 64 * 1024;

fn write(object: &Value, with_rv: bool) -> Vec<u8> {
    SCRATCH.with_borrow_mut(|out| {
        out.clear();
        write_object(out, object, with_rv);
        let exact = out.as_slice().to_vec();
        out.shrink_to(SCRATCH_BYTES);
        exact
    })
}

fn write_object(out: &mut Vec<u8>, object: &Value, with_rv: bool) {
    let Some(map) = object.as_object() else {
        json::write(out, object);
        return;
    };
    out.push(b'{');
    let empty = Value::Object(Map::new());
    for first in ["apiVersion", "kind", "metadata"] {
        let value = match map.get(first) {
            Some(v) => v,
            None if first == "metadata" => &empty,
            None => continue,
        };
        key(out, first);
        match value {
            Value::Object(meta) if first == "metadata" => write_meta(out, meta, with_rv),
            other => json::write(out, other),
        }
    }
    for (k, v) in map {
        if !matches!(k.as_str(), "apiVersion" | "kind" | "metadata") {
            key(out, k);
            json::write(out, v);
        }
    }
    out.push(b'}');
}

fn write_meta(out: &mut Vec<u8>, meta: &Map<String, Value>, with_rv: bool) {
    out.push(b'{');
    let rv = meta.get("resourceVersion").filter(|_| with_rv);
    if let Some(rv) = rv {
        key(out, "resourceVersion");
        json::write(out, rv);
    }
    for (k, v) in meta {
        if k != "resourceVersion" {
            key(out, k);
            json::write(out, v);
        }
    }
    out.push(b'}');
}

fn key(out: &mut Vec<u8>, name: &str) {
    if out.last() != Some(&b'{') {
        out.push(b',');
    }
    json::write_string(out, name);
    out.push(b':');
}

/// Where the inside of `metadata` begins, in bytes laid out as above. The first two values are looked at, because
/// a `kind` may not contain the text by accident.
fn metadata_at(stored: &[u8]) -> Option<usize> {
    let mut at = 1;
    for name in [&b"\"apiVersion\":\""[..], &b"\"kind\":\""[..]] {
        let rest = stored.get(at..)?.strip_prefix(name)?;
        let end = rest.iter().position(|b| *b == b'"' || *b == b'\\').filter(|p| rest[*p] == b'"')?;
        at += name.len() + end + 1;
        if stored.get(at) != Some(&b',') {
            return None;
        }
        at += 1;
    }
    stored.get(at..)?.starts_with(META).then_some(at + META.len())
}

/// The stored object with `metadata.resourceVersion`, as clients see it.
pub fn with_revision(stored: &Bytes, revision: Revision) -> Bytes {
    let grows = REVISION_BYTES + revision.checked_ilog10().unwrap_or(0) as usize;
    let mut out = Vec::with_capacity(stored.len() + grows);
    match append_with_revision(&mut out, stored, revision) {
        Ok(()) => Bytes::from(out),
        Err(_) => stored.clone(),
    }
}

/// Appends the stored object with its revision to `out`.
pub(crate) fn append_with_revision(
    out: &mut Vec<u8>,
    stored: &[u8],
    revision: Revision,
) -> Result<(), serde_json::Error> {
    let plain = metadata_at(stored).filter(|at| !stored[*at..].starts_with(RV));
    let Some(at) = plain else {
        let mut value: Value = serde_json::from_slice(stored)?;
        kaji_meta::object::meta_mut(&mut value).insert("resourceVersion".into(), revision.to_string().into());
        out.extend_from_slice(&write(&value, true));
        return Ok(());
    };
    out.extend_from_slice(&stored[..at]);
    out.extend_from_slice(RV);
    out.extend_from_slice(itoa::Buffer::new().format(revision).as_bytes());
    out.push(b'"');
    if stored.get(at) != Some(&b'}') {
        out.push(b',');
    }
    out.extend_from_slice(&stored[at..]);
    Ok(())
}

/// Appends an object that has a revision (made by [`append_with_revision`]) with another one.
pub(crate) fn append_replacing_revision(out: &mut Vec<u8>, object: &[u8], revision: Revision) {
    let spliced = metadata_at(object).and_then(|at| {
        let digits = at + RV.len();
        let rest = object.get(at..)?.strip_prefix(RV)?;
        Some((digits, digits + rest.iter().position(|b| *b == b'"')?))
    });
    match spliced {
        Some((from, to)) => {
            out.extend_from_slice(&object[..from]);
            out.extend_from_slice(itoa::Buffer::new().format(revision).as_bytes());
            out.extend_from_slice(&object[to..]);
        }
        None => out.extend_from_slice(object),
    }
}

/// How an encoded object of a kind begins, if it is laid out as above; `metadata` follows.
pub(crate) fn head(api_version: &str, kind: &str) -> Vec<u8> {
    format!(r#"{{"apiVersion":"{api_version}","kind":"{kind}","#).into_bytes()
}

/// The `apiVersion` of an encoded object, if it is laid out as above.
pub(crate) fn peek_api_version(object: &[u8]) -> Option<&str> {
    let rest = object.strip_prefix(b"{\"apiVersion\":\"")?;
    let end = rest.iter().position(|b| *b == b'"')?;
    std::str::from_utf8(&rest[..end]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    fn text(b: &[u8]) -> &str {
        std::str::from_utf8(b).unwrap()
    }

    #[test]
    fn first_keys_first() {
        let v = json!({"data": {"a": "b"}, "kind": "ConfigMap", "apiVersion": "v1",
            "metadata": {"name": "x", "resourceVersion": "9", "annotations": {"\"metadata\":{": "y"}}});
        let stored = encode(&v);
        expect![[r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"annotations":{"\"metadata\":{":"y"},"name":"x"},"data":{"a":"b"}}"#]]
            .assert_eq(text(&stored));
        let with = with_revision(&stored, 12);
        expect![[r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"resourceVersion":"12","annotations":{"\"metadata\":{":"y"},"name":"x"},"data":{"a":"b"}}"#]]
            .assert_eq(text(&with));
        let mut out = vec![];
        append_replacing_revision(&mut out, &with, 1000);
        expect![[r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"resourceVersion":"1000","annotations":{"\"metadata\":{":"y"},"name":"x"},"data":{"a":"b"}}"#]]
            .assert_eq(text(&out));
        assert_eq!(text(&encode_object(&serde_json::from_slice(&out).unwrap())), text(&out));
        assert_eq!(peek_api_version(&out), Some("v1"));
    }

    #[test]
    fn foreign_layouts() {
        let stored = Bytes::from_static(br#"{"kind":"A","metadata":{},"apiVersion":"v1"}"#);
        assert_eq!(
            text(&with_revision(&stored, 3)),
            r#"{"apiVersion":"v1","kind":"A","metadata":{"resourceVersion":"3"}}"#
        );
        let empty = encode(&json!({"apiVersion": "v1", "kind": "A"}));
        assert_eq!(
            text(&with_revision(&empty, 3)),
            r#"{"apiVersion":"v1","kind":"A","metadata":{"resourceVersion":"3"}}"#
        );
    }
}
