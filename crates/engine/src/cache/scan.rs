//! One pass over an encoded object that finds what caches and selectors need, without building a value.
//!
//! Invariant: what is found is a position in the scanned bytes wherever the text is there as it is (no escapes);
//! only the rest is copied. So an entry costs little more memory than its bytes.

use kaji_meta::json::{Malformed, Reader};
use kaji_resource::SelectableField;
use serde::de::Error as _;
use std::borrow::Cow;

/// A piece of text: a position in the object's bytes, or, at and past their end, in the text kept beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ref {
    pub at: u32,
    pub len: u32,
}

impl Ref {
    /// There is no such field.
    pub const MISSING: Ref = Ref { at: u32::MAX, len: 0 };
}

/// The fields that selectors may use, as a tree to walk along with the object.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    pub list: Vec<SelectableField>,
    root: Node,
    /// Positions of fields and of other fields that give their values where they have none.
    stand_ins: Vec<(usize, usize)>,
}

#[derive(Debug, Default)]
struct Node {
    /// Position in `Fields::list`.
    field: Option<usize>,
    children: Vec<(Box<str>, Node)>,
}

impl Node {
    fn child(&self, key: &str) -> Option<&Node> {
        self.children.iter().find(|(k, _)| **k == *key).map(|(_, n)| n)
    }

    fn child_mut(&mut self, key: &str) -> &mut Node {
        let at = self.children.iter().position(|(k, _)| **k == *key).unwrap_or_else(|| {
            self.children.push((key.into(), Node::default()));
            self.children.len() - 1
        });
        &mut self.children[at].1
    }
}

impl Fields {
    /// The fields of `list`. Of two with one path, both find the value.
    pub fn new(list: Vec<SelectableField>) -> Self {
        let mut root = Node::default();
        for (i, field) in list.iter().enumerate() {
            let leaf = field.path.iter().fold(&mut root, |node, key| node.child_mut(key));
            leaf.field.get_or_insert(i);
        }
        let mut fields = Fields { list, root, stand_ins: vec![] };
        let named = fields.list.iter().filter_map(|f| Some((f.name.clone(), f.or?)));
        let pairs = named.filter_map(|(name, or)| Some((fields.position(&name)?, fields.position(or)?)));
        fields.stand_ins = pairs.collect();
        fields
    }

    /// The position of a field by the selector's name.
    pub fn position(&self, name: &str) -> Option<usize> {
        let named = self.list.iter().position(|f| f.name == name)?;
        // Another name for the same path is found where the path is.
        self.list.iter().position(|f| f.path == self.list[named].path)
    }
}

/// What a pass found.
#[derive(Debug)]
pub(super) struct Found {
    /// The whole of `metadata`, braces included.
    pub metadata: Ref,
    pub uid: Ref,
    pub deleting: bool,
    /// Keys and values in turn.
    pub labels: Vec<Ref>,
    /// Uids of the owners.
    pub owners: Vec<Ref>,
    /// One for each of the fields asked for.
    pub fields: Vec<Ref>,
    /// Text that is not in the bytes as it is.
    pub extra: String,
}

/// Scans an object. Parts that are of no interest are passed over, not checked: the bytes were valid JSON when they were
/// written, or have been looked at before.
///
/// # Errors
/// When it is no text, or does not end as it should.
pub(super) fn scan(object: &[u8], fields: &Fields) -> Result<Found, serde_json::Error> {
    let text = std::str::from_utf8(object).map_err(serde_json::Error::custom)?;
    let mut scanner = Scanner {
        base: text,
        reader: Reader::new(text),
        found: Found {
            metadata: Ref::MISSING,
            uid: Ref::MISSING,
            deleting: false,
            labels: vec![],
            owners: vec![],
            fields: vec![Ref::MISSING; fields.list.len()],
            extra: String::new(),
        },
    };
    scanner.object(Some(&fields.root), Section::Top).map_err(serde_json::Error::custom)?;
    if scanner.reader.peek().is_some() {
        return Err(serde_json::Error::custom(scanner.reader.malformed()));
    }
    let mut found = scanner.found;
    for (field, or) in &fields.stand_ins {
        if found.fields[*field].len == 0 {
            found.fields[*field] = found.fields[*or];
        }
    }
    Ok(found)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Top,
    Metadata,
    Labels,
    Owner,
    Other,
}

struct Scanner<'a> {
    base: &'a str,
    reader: Reader<'a>,
    found: Found,
}

impl<'a> Scanner<'a> {
    /// A text of the input, by position if it is a part of it.
    fn text(&mut self, text: Cow<'a, str>) -> Ref {
        match text {
            Cow::Borrowed(s) => self.inside(s),
            Cow::Owned(s) => {
                let at = u32::try_from(self.base.len() + self.found.extra.len()).unwrap_or(u32::MAX);
                self.found.extra.push_str(&s);
                Ref { at, len: u32::try_from(s.len()).unwrap_or(0) }
            }
        }
    }

    /// Where a piece of the input is. Objects are far smaller than 4 GiB.
    fn inside(&self, piece: &str) -> Ref {
        let at = (piece.as_ptr() as usize).wrapping_sub(self.base.as_ptr() as usize);
        match (u32::try_from(at), u32::try_from(piece.len())) {
            (Ok(at), Ok(len)) if at as usize + piece.len() <= self.base.len() => Ref { at, len },
            _ => Ref::MISSING,
        }
    }

    /// The next value as a selector sees it: strings without quotes, numbers and booleans as they are written.
    fn scalar(&mut self) -> Result<Ref, Malformed> {
        Ok(match self.reader.peek() {
            Some(b'"') => {
                let text = self.reader.string()?;
                self.text(text)
            }
            first => {
                let raw = self.reader.value()?;
                if matches!(first, Some(b'{' | b'[' | b'n')) { Ref::MISSING } else { self.inside(raw) }
            }
        })
    }

    /// An object on the way to some field, or one of metadata's; anything else is passed over.
    fn object(&mut self, node: Option<&Node>, place: Section) -> Result<(), Malformed> {
        let from = self.reader.clone();
        if !self.reader.take(b'{') {
            return self.reader.value().map(drop);
        }
        while let Some(key) = self.reader.key()? {
            let child = node.and_then(|n| n.child(&key));
            match (place, &*key) {
                (Section::Top, "metadata") => self.object(child, Section::Metadata)?,
                (Section::Labels, _) => {
                    let value = self.scalar()?;
                    if value != Ref::MISSING {
                        let key = self.text(key);
                        self.found.labels.extend([key, value]);
                    }
                }
                (Section::Metadata, "labels") => self.object(child, Section::Labels)?,
                (Section::Metadata, "ownerReferences") => self.owners()?,
                (Section::Metadata, "deletionTimestamp") => {
                    self.found.deleting = self.reader.value()? != "null"
                }
                (Section::Metadata, "uid") => self.found.uid = self.scalar()?,
                (Section::Owner, "uid") => {
                    let uid = self.scalar()?;
                    self.found.owners.push(uid);
                }
                _ => match child {
                    Some(Node { field: Some(i), children }) if children.is_empty() => {
                        self.found.fields[*i] = self.scalar()?;
                    }
                    Some(_) => self.object(child, Section::Other)?,
                    None => drop(self.reader.value()?),
                },
            }
        }
        if place == Section::Metadata {
            let (mut before, end) = (from, self.reader.position());
            before.peek();
            self.found.metadata =
                self.base.get(before.position()..end).map_or(Ref::MISSING, |m| self.inside(m));
        }
        Ok(())
    }

    /// The elements of `ownerReferences`.
    fn owners(&mut self) -> Result<(), Malformed> {
        if !self.reader.take(b'[') {
            return self.reader.value().map(drop);
        }
        while self.reader.element() {
            self.object(None, Section::Owner)?;
        }
        Ok(())
    }
}
