//! The storage format: the JSON that clients see (see [`kaji_schema::order`]), without `metadata.resourceVersion`.
//!
//! Invariants: because every object is stored in the order in which it is sent, a revision is spliced into (or replaced
//! in) its bytes without decoding it. Values that were stored in another order, by former versions of this server, take
//! a slower path with the same result.

use bytes::Bytes;
use kaji_meta::json::{self, Malformed, Reader};
use kaji_schema::order;
use kaji_store::Revision;
use serde::de::Error as _;
use serde_json::Value;
use std::{cell::RefCell, cmp::Ordering, ops::Range};

/// How objects of built-in kinds begin.
const TYPED: &str = "{\"kind\":\"";
const RV: &[u8] = b"\"resourceVersion\":\"";
/// What a resourceVersion of one digit adds to an object.
pub(crate) const REVISION_BYTES: usize = RV.len() + "1\",".len();

/// Encodes an object for the store, without resourceVersion.
pub fn encode(object: &Value) -> Bytes {
    Bytes::from(write(object, false))
}

/// Encodes an object for a client, with whatever resourceVersion it has.
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
    match object.as_object() {
        Some(map) => order::write_object(out, map, order::of(object), with_rv),
        None => json::write(out, object),
    }
}

/// Where an object's resourceVersion is, or where it goes: after the members of `metadata` that come before it.
enum RevisionPosition {
    Present(Range<usize>),
    Missing(usize),
}

fn revision_position(object: &str) -> Result<Option<RevisionPosition>, Malformed> {
    let typed = object.starts_with(TYPED);
    let before = |key: &str| match typed {
        true => matches!(key, "name" | "generateName" | "namespace" | "selfLink" | "uid"),
        false => key.cmp("resourceVersion") == Ordering::Less,
    };
    let mut reader = Reader::new(object);
    if !reader.take(b'{') {
        return Err(reader.malformed());
    }
    while let Some(key) = reader.key()? {
        if key != "metadata" || reader.peek() != Some(b'{') {
            reader.value()?;
            continue;
        }
        reader.take(b'{');
        loop {
            let at = reader.position();
            match reader.key()?.as_deref() {
                Some("resourceVersion") => {
                    let text = reader.value()?;
                    return Ok(Some(RevisionPosition::Present(
                        reader.position() - text.len()..reader.position(),
                    )));
                }
                Some(key) if before(key) => reader.value().map(drop)?,
                _ => return Ok(Some(RevisionPosition::Missing(at))),
            }
        }
    }
    Ok(None)
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
    let text = std::str::from_utf8(stored).map_err(serde_json::Error::custom)?;
    if let Some(ordered) = in_todays_order(text).map_err(serde_json::Error::custom)? {
        return append_with_revision(out, &ordered, revision);
    }
    match revision_position(text).map_err(serde_json::Error::custom)? {
        Some(RevisionPosition::Missing(at)) => splice(out, stored, at, revision),
        Some(RevisionPosition::Present(digits)) => replace(out, stored, digits, revision),
        None => {
            let mut value: Value = serde_json::from_slice(stored)?;
            kaji_meta::object::meta_mut(&mut value)
                .insert("resourceVersion".into(), revision.to_string().into());
            out.extend_from_slice(&write(&value, true));
        }
    }
    Ok(())
}

/// An object of a built-in kind as it is stored today, if it is stored as it was before members had their types' order.
fn in_todays_order(stored: &str) -> Result<Option<Vec<u8>>, Malformed> {
    if is_ordered(stored) {
        return Ok(None);
    }
    let (mut api_version, mut kind) = (None, None);
    let mut reader = Reader::new(stored);
    if !reader.take(b'{') {
        return Err(reader.malformed());
    }
    while let (None, _) | (_, None) = (&api_version, &kind)
        && let Some(key) = reader.key()?
    {
        match &*key {
            "apiVersion" if reader.peek() == Some(b'"') => api_version = Some(reader.string()?),
            "kind" if reader.peek() == Some(b'"') => kind = Some(reader.string()?),
            _ => drop(reader.value()?),
        }
    }
    let (Some(api_version), Some(kind)) = (api_version, kind) else { return Ok(None) };
    let Some(schema) = order::of_kind(&api_version, &kind) else { return Ok(None) };
    let mut out = Vec::with_capacity(stored.len());
    order::rewrite(&mut out, stored, Some(schema))?;
    let ordered = std::str::from_utf8(&out).is_ok_and(is_ordered);
    Ok(ordered.then_some(out))
}

/// Whether an object begins as those of built-in kinds do.
fn is_ordered(object: &str) -> bool {
    let past = |rest: &'_ str| rest.bytes().position(|b| matches!(b, b'"' | b'\\'));
    let Some(rest) = object.strip_prefix(TYPED) else { return false };
    let rest = past(rest).and_then(|end| rest[end..].strip_prefix("\",\"apiVersion\":\""));
    let rest = rest.and_then(|rest| rest[past(rest)?..].strip_prefix("\",\"metadata\":{"));
    rest.is_some()
}

fn splice(out: &mut Vec<u8>, object: &[u8], at: usize, revision: Revision) {
    out.extend_from_slice(&object[..at]);
    let first = out.last() == Some(&b'{');
    if !first {
        out.push(b',');
    }
    out.extend_from_slice(RV);
    out.extend_from_slice(itoa::Buffer::new().format(revision).as_bytes());
    out.push(b'"');
    if first && object.get(at) != Some(&b'}') {
        out.push(b',');
    }
    out.extend_from_slice(&object[at..]);
}

/// `of` is where the former one is, with its quotes.
fn replace(out: &mut Vec<u8>, object: &[u8], of: Range<usize>, revision: Revision) {
    out.extend_from_slice(&object[..of.start]);
    out.push(b'"');
    out.extend_from_slice(itoa::Buffer::new().format(revision).as_bytes());
    out.push(b'"');
    out.extend_from_slice(&object[of.end..]);
}

/// Appends an object that has a revision (made by [`append_with_revision`]) with another one.
pub(crate) fn append_replacing_revision(out: &mut Vec<u8>, object: &[u8], revision: Revision) {
    match std::str::from_utf8(object).ok().and_then(|text| revision_position(text).ok()?) {
        Some(RevisionPosition::Present(digits)) => replace(out, object, digits, revision),
        Some(RevisionPosition::Missing(_)) | None => out.extend_from_slice(object),
    }
}

/// How an encoded object of a built-in kind begins; `metadata` follows.
pub(crate) fn head(api_version: &str, kind: &str) -> Vec<u8> {
    format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","#).into_bytes()
}

/// The `apiVersion` of an encoded object.
pub(crate) fn peek_api_version(object: &[u8]) -> Option<&str> {
    let up_to_quote = |rest: &[u8]| rest.iter().position(|b| matches!(b, b'"' | b'\\'));
    // How nearly all objects begin.
    let rest = match object.strip_prefix(TYPED.as_bytes()) {
        Some(kind) => kind.get(up_to_quote(kind)?..)?.strip_prefix(b"\",\"apiVersion\":\""),
        None => object.strip_prefix(b"{\"apiVersion\":\""),
    };
    if let Some(rest) = rest {
        return std::str::from_utf8(&rest[..up_to_quote(rest)?]).ok();
    }
    let mut reader = Reader::new(std::str::from_utf8(object).ok()?);
    reader.take(b'{');
    while let Some(key) = reader.key().ok()? {
        match &*key {
            "apiVersion" => return reader.value().ok()?.strip_prefix('"')?.strip_suffix('"'),
            _ => drop(reader.value().ok()?),
        }
    }
    None
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
    fn built_in_objects_are_stored_in_their_types_order() {
        let v = json!({"data": {"a": "b"}, "kind": "ConfigMap", "apiVersion": "v1",
            "metadata": {"name": "x", "uid": "u", "resourceVersion": "9", "annotations": {"\"metadata\":{": "y"}}});
        let stored = encode(&v);
        expect![[r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"x","uid":"u","annotations":{"\"metadata\":{":"y"}},"data":{"a":"b"}}"#]]
            .assert_eq(text(&stored));
        let with = with_revision(&stored, 12);
        expect![[r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"x","uid":"u","resourceVersion":"12","annotations":{"\"metadata\":{":"y"}},"data":{"a":"b"}}"#]]
            .assert_eq(text(&with));
        let mut out = vec![];
        append_replacing_revision(&mut out, &with, 1000);
        assert_eq!(text(&out), text(&with).replace("12", "1000"));
        assert_eq!(text(&encode_object(&serde_json::from_slice(&out).unwrap())), text(&out));
        assert_eq!(peek_api_version(&out), Some("v1"));
    }

    #[test]
    fn custom_objects_are_stored_by_name() {
        let v = json!({"zz": 1, "aa": {"metadata": {"x": 1}}, "kind": "Foo", "apiVersion": "ex.io/v1",
            "metadata": {"name": "x", "uid": "u", "resourceVersion": "9", "labels": {"resourceVersion": "y"}}});
        let stored = encode(&v);
        let with = with_revision(&stored, 12);
        expect![[r#"{"aa":{"metadata":{"x":1}},"apiVersion":"ex.io/v1","kind":"Foo","metadata":{"labels":{"resourceVersion":"y"},"name":"x","resourceVersion":"12","uid":"u"},"zz":1}"#]]
            .assert_eq(text(&with));
        let mut out = vec![];
        append_replacing_revision(&mut out, &with, 1000);
        assert_eq!(text(&out), text(&with).replace("12", "1000"));
        assert_eq!(text(&encode_object(&serde_json::from_slice(&out).unwrap())), text(&out));
        assert_eq!(peek_api_version(&out), Some("ex.io/v1"));
    }

    #[test]
    fn objects_stored_in_another_order_are_read_in_todays() {
        for (stored, want) in [
            (
                r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"annotations":{"b":"c"},"name":"x"},"data":{"a":"b"}}"#,
                r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"x","resourceVersion":"3","annotations":{"b":"c"}},"data":{"a":"b"}}"#,
            ),
            (
                r#"{"kind":"A","metadata":{},"apiVersion":"v1"}"#,
                r#"{"kind":"A","metadata":{"resourceVersion":"3"},"apiVersion":"v1"}"#,
            ),
            (
                r#"{"apiVersion":"v1","kind":"A"}"#,
                r#"{"apiVersion":"v1","kind":"A","metadata":{"resourceVersion":"3"}}"#,
            ),
            (
                r#"{"apiVersion":"ex.io/v1","kind":"A","metadata":{"name":"n","uid":"u"},"aa":1}"#,
                r#"{"apiVersion":"ex.io/v1","kind":"A","metadata":{"name":"n","resourceVersion":"3","uid":"u"},"aa":1}"#,
            ),
        ] {
            assert_eq!(text(&with_revision(&Bytes::from_static(stored.as_bytes()), 3)), want);
        }
    }
}
