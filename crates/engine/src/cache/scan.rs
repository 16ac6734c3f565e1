//! One pass over an encoded object that finds what caches and selectors need, without building a value.
//!
//! Invariant: what is found is a position in the scanned bytes wherever the text is there as it is (no escapes);
//! only the rest is copied. So an entry costs little more memory than its bytes.

use kaji_resource::SelectableField;
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::{borrow::Cow, fmt};

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
    /// Positions of fields whose value, where there is none, is that of the other field.
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

/// Scans an object.
pub(super) fn scan(object: &[u8], fields: &Fields) -> Result<Found, serde_json::Error> {
    let mut scanner = Scanner {
        base: object,
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
    let text = std::str::from_utf8(object).map_err(de::Error::custom)?;
    let mut de = serde_json::Deserializer::from_str(text);
    Object { scanner: &mut scanner, node: Some(&fields.root), place: Place::Top }.deserialize(&mut de)?;
    de.end()?;
    let mut found = scanner.found;
    for (field, or) in &fields.stand_ins {
        if found.fields[*field].len == 0 {
            found.fields[*field] = found.fields[*or];
        }
    }
    Ok(found)
}

struct Scanner<'a> {
    base: &'a [u8],
    found: Found,
}

impl<'a> Scanner<'a> {
    /// A text of the input, by position if it is a part of it.
    fn text(&mut self, text: Cow<'a, str>) -> Ref {
        match text {
            Cow::Borrowed(s) => self.inside(s.as_bytes()),
            Cow::Owned(s) => {
                let at = u32::try_from(self.base.len() + self.found.extra.len()).unwrap_or(u32::MAX);
                self.found.extra.push_str(&s);
                Ref { at, len: u32::try_from(s.len()).unwrap_or(0) }
            }
        }
    }

    /// Where a piece of the input is. Objects are far smaller than 4 GiB.
    fn inside(&self, piece: &[u8]) -> Ref {
        let at = (piece.as_ptr() as usize).wrapping_sub(self.base.as_ptr() as usize);
        match (u32::try_from(at), u32::try_from(piece.len())) {
            (Ok(at), Ok(len)) if at as usize + piece.len() <= self.base.len() => Ref { at, len },
            _ => Ref::MISSING,
        }
    }

    /// A scalar as a selector sees it: strings without quotes, numbers and booleans as they are written.
    fn scalar(&mut self, raw: &'a RawValue) -> Result<Ref, serde_json::Error> {
        let text = raw.get();
        Ok(match text.as_bytes().first() {
            Some(b'"') => {
                let text: Text<'a> = serde_json::from_str(text)?;
                self.text(text.0)
            }
            Some(b'{' | b'[' | b'n') | None => Ref::MISSING,
            Some(_) => self.inside(text.as_bytes()),
        })
    }
}

/// A string, borrowed if it has no escapes.
struct Text<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> de::Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> Visitor<'de> for V {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, v: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(v)))
            }
            fn visit_str<E>(self, v: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(v.to_owned())))
            }
        }
        d.deserialize_str(V)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Top,
    Metadata,
    Labels,
    Owner,
    Elsewhere,
}

/// An object on the way to some field, or one of metadata's.
struct Object<'s, 'a, 'n> {
    scanner: &'s mut Scanner<'a>,
    node: Option<&'n Node>,
    place: Place,
}

impl<'a> DeserializeSeed<'a> for Object<'_, 'a, '_> {
    type Value = ();
    fn deserialize<D: Deserializer<'a>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_any(self)
    }
}

/// The elements of `ownerReferences`.
struct Owners<'s, 'a>(&'s mut Scanner<'a>);

impl<'a> DeserializeSeed<'a> for Owners<'_, 'a> {
    type Value = ();
    fn deserialize<D: Deserializer<'a>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_any(self)
    }
}

impl<'a> Visitor<'a> for Owners<'_, 'a> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_seq<A: de::SeqAccess<'a>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq
            .next_element_seed(Object { scanner: &mut *self.0, node: None, place: Place::Owner })?
            .is_some()
        {}
        Ok(())
    }
}

impl<'a> Visitor<'a> for Object<'_, 'a, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<(), A::Error> {
        let Object { scanner, node, place } = self;
        while let Some(Text(key)) = map.next_key::<Text<'a>>()? {
            let child = node.and_then(|n| n.child(&key));
            match (place, &*key) {
                (Place::Top, "metadata") => {
                    let raw: &'a RawValue = map.next_value()?;
                    scanner.found.metadata = scanner.inside(raw.get().as_bytes());
                    let mut de = serde_json::Deserializer::from_str(raw.get());
                    let object = Object { scanner: &mut *scanner, node: child, place: Place::Metadata };
                    object.deserialize(&mut de).map_err(de::Error::custom)?;
                }
                (Place::Labels, _) => {
                    let raw: &'a RawValue = map.next_value()?;
                    let value = scanner.scalar(raw).map_err(de::Error::custom)?;
                    if value != Ref::MISSING {
                        let key = scanner.text(key);
                        scanner.found.labels.extend([key, value]);
                    }
                }
                (Place::Metadata, "labels") => {
                    map.next_value_seed(Object {
                        scanner: &mut *scanner,
                        node: child,
                        place: Place::Labels,
                    })?;
                }
                (Place::Metadata, "ownerReferences") => map.next_value_seed(Owners(&mut *scanner))?,
                (Place::Metadata, "deletionTimestamp") => {
                    let raw: &'a RawValue = map.next_value()?;
                    scanner.found.deleting = raw.get() != "null";
                }
                (Place::Metadata | Place::Owner, "uid") => {
                    let raw: &'a RawValue = map.next_value()?;
                    let uid = scanner.scalar(raw).map_err(de::Error::custom)?;
                    match place {
                        Place::Metadata => scanner.found.uid = uid,
                        _ => scanner.found.owners.push(uid),
                    }
                }
                _ => match child {
                    Some(Node { field: Some(i), children }) if children.is_empty() => {
                        let raw: &'a RawValue = map.next_value()?;
                        scanner.found.fields[*i] = scanner.scalar(raw).map_err(de::Error::custom)?;
                    }
                    Some(_) => {
                        map.next_value_seed(Object {
                            scanner: &mut *scanner,
                            node: child,
                            place: Place::Elsewhere,
                        })?;
                    }
                    None => {
                        map.next_value::<IgnoredAny>()?;
                    }
                },
            }
        }
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }
    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }
    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }
    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
    fn visit_seq<A: de::SeqAccess<'a>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }
}
