//! One version of one object, encoded once as the watch event that is sent ([`Entry::from_stored`]).
//!
//! Invariants: what an entry shows never changes. Unless one of the two forms below is kept, its bytes are a whole watch event, the object
//! is a slice of them, and everything else in it is positions in those bytes. The forms are computed at each use: differences to a base, of
//! objects that were made from one template ([`Entry::compact`]); and the stored object alone, where a definition has gained so large
//! defaults that what reads show is much larger: that is sent piece by piece, and never lies in memory as a whole.

use super::{
    Normal,
    delta::{Bases, Delta},
    scan::{Fields, Ref, scan},
};
use crate::storage;
use bytes::Bytes;
use kaji_store::Revision;
use serde_json::Value;
use std::{borrow::Cow, sync::Arc};

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// It came into being.
    Added,
    /// It changed.
    Modified,
    /// It went away.
    Deleted,
}

impl Change {
    /// The type of a watch event.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Change::Added => "ADDED",
            Change::Modified => "MODIFIED",
            Change::Deleted => "DELETED",
        }
    }

    /// The beginning of a watch event, up to its object.
    pub(crate) const fn head(self) -> &'static [u8] {
        match self {
            Change::Added => br#"{"type":"ADDED","object":"#,
            Change::Modified => br#"{"type":"MODIFIED","object":"#,
            Change::Deleted => br#"{"type":"DELETED","object":"#,
        }
    }
}

/// The end of a watch event, after its object.
pub(crate) const TAIL: &[u8] = b"}\n";

/// An object. See the module's text.
pub struct Entry {
    /// The storage key.
    pub key: Arc<str>,
    /// The revision that wrote it (or, for the last state of a deleted object, that deleted it).
    pub revision: Revision,
    /// What is known without decoding.
    pub meta: EntryMeta,
    change: Change,
    body: Kept,
    /// What is left out of the frame, if anything is.
    rest: Option<Box<Rest>>,
}

/// How an entry keeps its object.
enum Kept {
    /// In a whole watch event.
    Frame(Bytes),
    /// As differences to a base, the object alone. Never of one that is completed when it is used.
    Delta(Box<Delta>),
}

/// How an object is completed when its frame holds only what is stored.
struct Rest {
    normal: Normal,
    /// Bytes of the object once it is complete.
    len: usize,
}

/// Bytes that completing an object may add to it in memory, besides as many again as it has.
const KEPT_GROWTH: usize = 2048;

/// What is known of an object without decoding it; the texts are read through [`Entry`]'s methods.
pub struct EntryMeta {
    namespace: (u32, u32),
    labels: u16,
    owners: u16,
    /// Whether it has a `deletionTimestamp`.
    pub deleting: bool,
    metadata: Ref,
    uid: Ref,
    /// Label keys and values in turn, owner uids, selectable fields.
    refs: Box<[Ref]>,
    extra: Option<Box<str>>,
}

impl Entry {
    /// An entry from a stored value, in the shape that `normal` gives it, if that differs.
    ///
    /// # Errors
    /// When the value is not an object in JSON.
    pub(crate) fn shaped(
        (key, prefix): (Arc<str>, &str),
        value: &[u8],
        normal: Option<&Normal>,
        revision: Revision,
        change: Change,
        fields: &Fields,
    ) -> Result<Entry, serde_json::Error> {
        let with = |value: &[u8]| Entry::from_stored(key.clone(), prefix, value, revision, change, fields);
        let Some((normal, whole)) = normal.and_then(|n| Some((n, n(value)?))) else { return with(value) };
        let entry = with(&whole)?;
        if whole.len() <= 2 * value.len() + KEPT_GROWTH {
            return Ok(entry);
        }
        let mut sparse = with(value)?;
        sparse.take_fields(&entry, fields.list.len());
        sparse.rest = Some(Box::new(Rest { normal: normal.clone(), len: entry.kept_len() }));
        Ok(sparse)
    }

    /// Takes over the selectable fields of the complete object, some of which may be missing here.
    fn take_fields(&mut self, whole: &Entry, count: usize) {
        let from = usize::from(self.meta.labels) * 2 + usize::from(self.meta.owners);
        let mut extra = self.meta.extra.take().map_or_else(String::new, String::from);
        for i in 0..count {
            let found = match whole.field(i) {
                Some(text) => {
                    let at = self.kept_len() + extra.len();
                    extra.push_str(text);
                    Ref {
                        at: u32::try_from(at).unwrap_or(u32::MAX),
                        len: u32::try_from(text.len()).unwrap_or(0),
                    }
                }
                None => Ref::MISSING,
            };
            if let Some(slot) = self.meta.refs.get_mut(from + i) {
                *slot = found;
            }
        }
        self.meta.extra = (!extra.is_empty()).then(|| extra.into_boxed_str());
    }

    /// An entry from a stored value.
    ///
    /// # Errors
    /// When the value is not an object in JSON.
    pub(crate) fn from_stored(
        key: Arc<str>,
        prefix: &str,
        value: &[u8],
        revision: Revision,
        change: Change,
        fields: &Fields,
    ) -> Result<Entry, serde_json::Error> {
        let head = change.head();
        // Sized exactly: this is what most of the process's memory consists of.
        let grows = storage::REVISION_BYTES + revision.checked_ilog10().unwrap_or(0) as usize;
        let mut frame = Vec::with_capacity(head.len() + value.len() + grows + TAIL.len());
        frame.extend_from_slice(head);
        storage::append_with_revision(&mut frame, value, revision)?;
        frame.extend_from_slice(TAIL);
        frame.shrink_to_fit();
        Entry::from_frame(key, prefix, Bytes::from(frame), revision, change, fields)
    }

    fn from_frame(
        key: Arc<str>,
        prefix: &str,
        frame: Bytes,
        revision: Revision,
        change: Change,
        fields: &Fields,
    ) -> Result<Entry, serde_json::Error> {
        let found = scan(&frame[change.head().len()..frame.len() - TAIL.len()], fields)?;
        let count = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let (labels, owners) = (count(found.labels.len() / 2), count(found.owners.len()));
        let mut refs = Vec::with_capacity(found.labels.len() + found.owners.len() + found.fields.len());
        refs.extend_from_slice(&found.labels[..usize::from(labels) * 2]);
        refs.extend_from_slice(&found.owners[..usize::from(owners)]);
        refs.extend(found.fields);
        let meta = EntryMeta {
            namespace: namespace_of(&key, prefix),
            labels,
            owners,
            deleting: found.deleting,
            metadata: found.metadata,
            uid: found.uid,
            refs: refs.into_boxed_slice(),
            extra: (!found.extra.is_empty()).then(|| found.extra.into_boxed_str()),
        };
        Ok(Entry { key, revision, meta, change, body: Kept::Frame(frame), rest: None })
    }

    /// The last state of this object as the event of its deletion shows it: with the revision of the deletion.
    pub(crate) fn deleted(
        &self,
        prefix: &str,
        revision: Revision,
        fields: &Fields,
    ) -> Result<Entry, serde_json::Error> {
        let frame = framed(Change::Deleted, &self.bytes(), revision);
        let mut last = Entry::from_frame(self.key.clone(), prefix, frame, revision, Change::Deleted, fields)?;
        if let Some(Rest { normal, len }) = self.rest.as_deref() {
            last.take_fields(self, fields.list.len());
            last.rest = Some(Box::new(Rest { normal: normal.clone(), len: *len }));
        }
        Ok(last)
    }

    /// This state in a DELETED event of the given revision.
    pub(crate) fn deleted_frame(&self, revision: Revision) -> Bytes {
        framed(Change::Deleted, &self.object(), revision)
    }

    /// The same object scanned for other fields.
    pub(crate) fn rescanned(&self, prefix: &str, fields: &Fields) -> Result<Entry, serde_json::Error> {
        let (key, revision, change) = (self.key.clone(), self.revision, self.change);
        match self.rest.as_deref() {
            Some(rest) => {
                Entry::shaped((key, prefix), &self.bytes(), Some(&rest.normal), revision, change, fields)
            }
            None => Entry::from_frame(key, prefix, self.frame(), revision, change, fields),
        }
    }

    /// The same entry in less memory, if others of its template are kept already. Its object is put together at each use.
    pub(super) fn compact(&self, bases: &mut Bases) -> Option<Entry> {
        let (Kept::Frame(_), None) = (&self.body, &self.rest) else { return None };
        let template = self.owner_uids().next().unwrap_or_else(|| self.namespace());
        let object = self.bytes();
        let delta = bases.delta(template, &object)?;
        // What is asked of the beginning of an object is in what it shares.
        let version = storage::peek_api_version(delta.beginning());
        if version.is_none() || version != storage::peek_api_version(&object) {
            return None;
        }
        let mut extra = self.meta.extra.as_deref().unwrap_or_default().to_owned();
        let mut moved = |r: Ref| {
            let inside = r != Ref::MISSING && (r.at as usize) < object.len();
            match self.text(r) {
                Some(text) if inside && delta.text(r.at as usize, r.len as usize).is_none() => {
                    let at = u32::try_from(object.len() + extra.len()).unwrap_or(u32::MAX);
                    extra.push_str(text);
                    Ref { at, len: r.len }
                }
                _ => r,
            }
        };
        let meta = EntryMeta {
            uid: moved(self.meta.uid),
            refs: self.meta.refs.iter().map(|r| moved(*r)).collect(),
            extra: (!extra.is_empty()).then(|| extra.into_boxed_str()),
            ..self.meta
        };
        let (key, revision, change) = (self.key.clone(), self.revision, self.change);
        Some(Entry { key, revision, meta, change, body: Kept::Delta(Box::new(delta)), rest: None })
    }

    fn inside<'a>(&self, frame: &'a Bytes) -> &'a [u8] {
        &frame[self.change.head().len()..frame.len() - TAIL.len()]
    }

    /// What the entry has of the object.
    fn bytes(&self) -> Cow<'_, [u8]> {
        match &self.body {
            Kept::Frame(frame) => Cow::Borrowed(self.inside(frame)),
            Kept::Delta(delta) => {
                let mut object = Vec::with_capacity(delta.len());
                delta.write(&mut object);
                Cow::Owned(object)
            }
        }
    }

    /// Bytes of what the entry has of the object.
    fn kept_len(&self) -> usize {
        match &self.body {
            Kept::Frame(frame) => self.inside(frame).len(),
            Kept::Delta(delta) => delta.len(),
        }
    }

    /// The object in JSON, in the version it is stored in, with its resourceVersion. Shares memory with the entry, if that
    /// has all of it.
    pub fn object(&self) -> Bytes {
        let whole = self.rest.as_deref().and_then(|rest| (rest.normal)(&self.bytes()));
        whole.map_or_else(|| self.kept(), |whole| storage::with_revision(&whole.into(), self.revision))
    }

    /// What the entry has of the object.
    fn kept(&self) -> Bytes {
        match &self.body {
            Kept::Frame(frame) => frame.slice(self.change.head().len()..frame.len() - TAIL.len()),
            Kept::Delta(_) => Bytes::from(self.bytes().into_owned()),
        }
    }

    /// The beginning of the object: its apiVersion and its kind.
    pub fn beginning(&self) -> &[u8] {
        match &self.body {
            Kept::Frame(frame) => self.inside(frame),
            Kept::Delta(delta) => delta.beginning(),
        }
    }

    /// How many bytes the object has.
    pub fn object_len(&self) -> usize {
        self.rest.as_deref().map_or_else(|| self.kept_len(), |rest| rest.len)
    }

    /// `metadata` in JSON. Shares memory with the entry.
    pub fn metadata(&self) -> Bytes {
        let Ref { at, len } = self.meta.metadata;
        let object = self.kept();
        let (at, len) = (at as usize, len as usize);
        if at + len > object.len() { Bytes::from_static(b"{}") } else { object.slice(at..at + len) }
    }

    /// The watch event that carries this version, whole. Shares memory with the entry, if that has all of it.
    pub(crate) fn frame(&self) -> Bytes {
        match (&self.body, &self.rest) {
            (Kept::Frame(frame), None) => frame.clone(),
            (Kept::Delta(delta), None) => {
                let head = self.change.head();
                let mut frame = Vec::with_capacity(head.len() + delta.len() + TAIL.len());
                frame.extend_from_slice(head);
                delta.write(&mut frame);
                frame.extend_from_slice(TAIL);
                Bytes::from(frame)
            }
            (_, Some(_)) => framed(self.change, &self.object(), self.revision),
        }
    }

    /// Whether the object is computed at each use.
    pub(crate) fn is_sparse(&self) -> bool {
        self.rest.is_some()
    }

    /// Whether another entry shows the same.
    pub(crate) fn looks_like(&self, other: &Entry) -> bool {
        !self.is_sparse() && !other.is_sparse() && self.frame() == other.frame()
    }

    /// What that event says has happened.
    pub fn change(&self) -> Change {
        self.change
    }

    /// The object as a value. It was valid JSON when the entry was made.
    pub fn decode(&self) -> Value {
        let object = if self.is_sparse() { self.object() } else { self.kept() };
        serde_json::from_slice(&object).unwrap_or_else(|error| {
            tracing::error!(key = &*self.key, %error, "decoding a cached object");
            Value::Null
        })
    }

    /// `""` for objects of the cluster.
    pub fn namespace(&self) -> &str {
        let (at, len) = self.meta.namespace;
        &self.key[at as usize..(at + len) as usize]
    }

    /// The name.
    pub fn name(&self) -> &str {
        let (at, len) = self.meta.namespace;
        let from = if len == 0 { at } else { at + len + 1 };
        &self.key[from as usize..]
    }

    /// The uid.
    pub fn uid(&self) -> &str {
        self.text(self.meta.uid).unwrap_or("")
    }

    fn text(&self, r: Ref) -> Option<&str> {
        if r == Ref::MISSING {
            return None;
        }
        let (at, len) = (r.at as usize, r.len as usize);
        if at + len <= self.kept_len() {
            return match &self.body {
                Kept::Frame(frame) => std::str::from_utf8(self.inside(frame).get(at..at + len)?).ok(),
                Kept::Delta(delta) => delta.text(at, len),
            };
        }
        let at = at.checked_sub(self.kept_len())?;
        self.meta.extra.as_deref()?.get(at..at + len)
    }

    /// Keys and values of the labels.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        let refs = &self.meta.refs[..usize::from(self.meta.labels) * 2];
        refs.chunks_exact(2).filter_map(|kv| Some((self.text(kv[0])?, self.text(kv[1])?)))
    }

    /// The value of one label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels().find(|(k, _)| *k == key).map(|(_, v)| v)
    }

    /// Uids of the owners.
    pub fn owner_uids(&self) -> impl Iterator<Item = &str> {
        let from = usize::from(self.meta.labels) * 2;
        let refs = &self.meta.refs[from..from + usize::from(self.meta.owners)];
        refs.iter().filter_map(|r| self.text(*r))
    }

    /// The value of a selectable field by its position among the cache's fields; `None` if the object lacks it.
    pub(crate) fn field(&self, position: usize) -> Option<&str> {
        let from = usize::from(self.meta.labels) * 2 + usize::from(self.meta.owners);
        self.text(*self.meta.refs.get(from + position)?)
    }

    /// Whether it was deleted (`metadata.deletionTimestamp` is set) and waits for something.
    pub fn deleting(&self) -> bool {
        self.meta.deleting
    }

    /// Bytes it holds on to, about.
    pub(crate) fn size(&self) -> usize {
        let body = match &self.body {
            Kept::Frame(frame) => frame.len(),
            Kept::Delta(delta) => delta.size(),
        };
        body + size_of::<Entry>() + self.meta.refs.len() * size_of::<Ref>()
    }
}

/// A watch event around an object that has a revision, with another one.
fn framed(change: Change, object: &[u8], revision: Revision) -> Bytes {
    let mut frame = Vec::with_capacity(change.head().len() + object.len() + TAIL.len() + 8);
    frame.extend_from_slice(change.head());
    storage::append_replacing_revision(&mut frame, object, revision);
    frame.extend_from_slice(TAIL);
    frame.shrink_to_fit();
    Bytes::from(frame)
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Entry({}@{})", self.key, self.revision)
    }
}

/// Position and length of the namespace in a key.
fn namespace_of(key: &str, prefix: &str) -> (u32, u32) {
    let at = prefix.len().min(key.len());
    let len = key[at..].find('/').unwrap_or(0);
    (u32::try_from(at).unwrap_or(0), u32::try_from(len).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use kaji_resource::SelectableField;

    fn entry(value: &str, fields: &Fields) -> Entry {
        let key = "/registry/core/pods/ns/name".into();
        Entry::from_stored(key, "/registry/core/pods/", value.as_bytes(), 7, Change::Added, fields).unwrap()
    }

    #[test]
    fn reads_without_decoding() {
        let fields = Fields::new(vec![
            SelectableField::new("spec.nodeName"),
            SelectableField::new("spec.hostNetwork"),
            SelectableField::new("spec.replicas"),
            SelectableField::new("status.phase"),
            SelectableField::new("spec.odd"),
            SelectableField::new("metadata.generateName"),
        ]);
        let e = entry(
            r#"{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"a":"b","x\u002fy":"q\"z"},"uid":"u1","ownerReferences":[{"kind":"A","uid":"o1"},{"uid":"o2"}],"generateName":"g-","deletionTimestamp":"2020"},"spec":{"containers":[{"nodeName":"no"}],"nodeName":"n\u0031","hostNetwork":true,"replicas":3,"odd":{"a":1}},"status":null}"#,
            &fields,
        );
        assert_eq!((e.namespace(), e.name(), e.uid(), e.deleting()), ("ns", "name", "u1", true));
        assert_eq!(e.labels().collect::<Vec<_>>(), [("a", "b"), ("x/y", "q\"z")]);
        assert_eq!(e.owner_uids().collect::<Vec<_>>(), ["o1", "o2"]);
        let found: Vec<_> = (0..7).map(|i| e.field(i)).collect();
        expect![[r#"[Some("n1"), Some("true"), Some("3"), None, None, Some("g-"), None]"#]]
            .assert_eq(&format!("{found:?}"));
        assert!(
            std::str::from_utf8(&e.metadata())
                .unwrap()
                .starts_with(r#"{"generateName":"g-","uid":"u1","resourceVersion":"7","deletionTimestamp""#)
        );
        assert!(e.metadata().ends_with(b"{\"uid\":\"o2\"}]}"));
        assert_eq!(e.frame()[..], [Change::Added.head(), &e.object()[..], TAIL].concat());

        let gone = e.deleted("/registry/core/pods/", 123_456, &fields).unwrap();
        assert_eq!(kaji_meta::object::resource_version(&gone.decode()), "123456");
        assert_eq!(gone.field(0), Some("n1"));
        assert_eq!(gone.uid(), "u1");
    }

    #[test]
    fn a_field_stands_in_for_another() {
        let fields = Fields::new(vec![
            SelectableField::new("source.component").or("reportingComponent"),
            SelectableField::new("reportingComponent"),
        ]);
        for (object, want) in [
            (r#"{"source":{"component":"a"},"reportingComponent":"b"}"#, Some("a")),
            (r#"{"source":{"component":""},"reportingComponent":"b"}"#, Some("b")),
            (r#"{"reportingComponent":"b"}"#, Some("b")),
            ("{}", None),
        ] {
            assert_eq!(entry(object, &fields).field(0), want, "{object}");
        }
    }

    #[test]
    fn reads_objects_without_a_namespace() {
        let e =
            Entry::from_stored("/p/n".into(), "/p/", b"{}", 7, Change::Added, &Fields::default()).unwrap();
        assert_eq!((e.namespace(), e.name(), e.uid()), ("", "n", ""));
        assert!(
            Entry::from_stored("/p/n".into(), "/p/", b"[", 7, Change::Added, &Fields::default()).is_err()
        );
    }
}
