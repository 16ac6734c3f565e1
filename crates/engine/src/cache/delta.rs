//! Objects that were made from one template, each kept as what tells it from a base: the pods of a replica set differ in a
//! few hundred of their bytes.
//!
//! Invariants: a [`Delta`] gives back exactly the bytes that it was made of, by copying pieces, without decoding. A base is
//! kept as long as a delta refers to it. Only an object that becomes much smaller is kept so, and the search for common
//! pieces is bounded.

use memchr::memmem;
use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

/// Smaller objects would not become much smaller, larger ones take long to compare. Places in them fit into 15 bits.
const SIZES: std::ops::Range<usize> = 640..1 << 15;
/// Bytes of a common piece: a shorter one costs as much as it saves.
const SHORTEST: usize = 16;
/// Searches for common pieces in one object.
const SEARCHES: usize = 128;
/// Marks a piece of the literals.
const LITERAL: u16 = 1 << 15;

/// An object that others are compared with.
#[derive(Debug)]
pub(super) struct Base(Box<[u8]>);

#[derive(Clone, Copy, Debug)]
struct Piece {
    /// Where it begins in the object; it ends where the next one begins.
    at: u16,
    /// Where it begins in the base, or, with [`LITERAL`], in the literals.
    from: u16,
}

/// An object as pieces of a base and literals.
#[derive(Debug)]
pub(super) struct Delta {
    base: Arc<Base>,
    /// The first is at 0.
    pieces: Box<[Piece]>,
    literals: Box<[u8]>,
    len: u16,
}

/// How many bytes two texts have in common at their beginnings.
fn common(a: &[u8], b: &[u8]) -> usize {
    let blocks = |x: &'_ [u8]| x.as_chunks::<32>().0.len();
    let most = blocks(a).min(blocks(b));
    let (x, y) = (a.as_chunks::<32>().0, b.as_chunks::<32>().0);
    let same = (0..most).take_while(|i| x[*i] == y[*i]).count() * 32;
    same + a[same..].iter().zip(&b[same..]).take_while(|(a, b)| a == b).count()
}

/// Where the next string, member or element begins or ends, after `at`.
fn next_border(text: &[u8], at: usize) -> Option<usize> {
    let rest = text.get(at + 1..)?;
    memchr::memchr3(b'"', b',', b'}', rest).map(|found| at + 1 + found)
}

/// Finds pieces that an object has in common with a base.
struct Comparison<'a> {
    base: &'a [u8],
    object: &'a [u8],
    pieces: Vec<Piece>,
    literals: Vec<u8>,
    /// Bytes of literals that are too many.
    limit: usize,
}

impl Comparison<'_> {
    fn copied(&mut self, at: usize, from: usize) {
        self.pieces.push(piece(at, from));
    }

    fn literal(&mut self, at: usize, end: usize) -> Option<()> {
        if self.literals.len() + (end - at) > self.limit {
            return None;
        }
        // Literals that follow each other are one piece.
        if self.pieces.last().is_none_or(|last| last.from & LITERAL == 0) {
            let mut literal = piece(at, self.literals.len());
            literal.from |= LITERAL;
            self.pieces.push(literal);
        }
        self.literals.extend_from_slice(&self.object[at..end]);
        Some(())
    }

    /// The next place of the object, after `at`, that is in the base, and where in the base: preferably after `from`.
    fn resume(&self, at: usize, from: usize, searches: &mut usize) -> Option<(usize, usize)> {
        let (begin, mut at) = (at, at);
        // Mostly a text was replaced by another one.
        let guess = next_border(self.base, from);
        while let Some(next) = next_border(self.object, at).filter(|next| next - begin <= self.limit) {
            at = next;
            let needle = self.object.get(at..at + SHORTEST)?;
            if let Some(guess) = guess
                && self.base.get(guess..guess + SHORTEST) == Some(needle)
            {
                return Some((at, guess));
            }
            *searches = searches.checked_sub(1)?;
            let later = memmem::find(&self.base[from..], needle).map(|found| from + found);
            if let Some(found) = later.or_else(|| memmem::find(self.base, needle)) {
                return Some((at, found));
            }
        }
        None
    }

    /// `None` when the object has too little in common with the base.
    fn run(&mut self) -> Option<()> {
        let (mut at, mut from, mut searches) = (0, 0, SEARCHES);
        while at < self.object.len() {
            let same = common(&self.object[at..], &self.base[from..]);
            if same >= SHORTEST || at + same == self.object.len() {
                self.copied(at, from);
                at += same;
                from += same;
            }
            if at == self.object.len() {
                break;
            }
            let (next, found) =
                self.resume(at, from, &mut searches).unwrap_or((self.object.len(), self.base.len()));
            self.literal(at, next)?;
            (at, from) = (next, found);
        }
        Some(())
    }
}

/// Of objects of [`SIZES`].
fn piece(at: usize, from: usize) -> Piece {
    let place = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
    Piece { at: place(at), from: place(from) }
}

impl Delta {
    /// What tells an object from a base; `None` if that is a lot.
    fn new(base: &Arc<Base>, object: &[u8]) -> Option<Delta> {
        let limit = object.len() / 2;
        let mut comparison =
            Comparison { base: &base.0, object, pieces: Vec::new(), literals: Vec::new(), limit };
        comparison.run()?;
        let Comparison { pieces, literals, .. } = comparison;
        let delta = Delta {
            base: base.clone(),
            pieces: pieces.into(),
            literals: literals.into(),
            len: u16::try_from(object.len()).ok()?,
        };
        (delta.size() <= limit).then_some(delta)
    }

    /// Bytes of the object.
    pub fn len(&self) -> usize {
        self.len.into()
    }

    /// Bytes that only this object takes.
    pub fn size(&self) -> usize {
        self.pieces.len() * size_of::<Piece>() + self.literals.len()
    }

    fn bytes(&self, index: usize) -> Option<&[u8]> {
        let piece = self.pieces.get(index)?;
        let end = self.pieces.get(index + 1).map_or(self.len, |next| next.at);
        let len = usize::from(end.checked_sub(piece.at)?);
        let from = usize::from(piece.from & !LITERAL);
        let source = if piece.from & LITERAL == 0 { &self.base.0 } else { &self.literals };
        source.get(from..from + len)
    }

    /// Appends the object.
    pub fn write(&self, out: &mut Vec<u8>) {
        (0..self.pieces.len()).filter_map(|i| self.bytes(i)).for_each(|bytes| out.extend_from_slice(bytes));
    }

    /// The object up to where it differs from the base for the first time.
    pub fn beginning(&self) -> &[u8] {
        self.bytes(0).unwrap_or_default()
    }

    /// A part of the object, if it lies in one piece.
    pub fn text(&self, at: usize, len: usize) -> Option<&str> {
        let index = self.pieces.partition_point(|piece| usize::from(piece.at) <= at).checked_sub(1)?;
        let inside = at - usize::from(self.pieces[index].at);
        std::str::from_utf8(self.bytes(index)?.get(inside..inside + len)?).ok()
    }
}

/// What is known of the objects of one template.
#[derive(Debug, Default)]
struct Template {
    base: Weak<Base>,
    /// Objects in a row that had too little in common with the base.
    misses: u32,
    /// Bases in a row with which no other object had much in common.
    useless: u32,
}

/// The present bases of a resource.
#[derive(Debug, Default)]
pub(super) struct Bases(HashMap<Box<str>, Template>);

impl Bases {
    /// Templates that are known at a time.
    const MOST: usize = 4096;
    /// So many objects with too little in common with a base have another one made.
    const MISSES: u32 = 8;
    /// After so many useless bases the objects of a template are not compared any more.
    const USELESS: u32 = 3;

    /// The object as a delta to the base of its template, if that takes much less memory.
    pub fn delta(&mut self, template: &str, object: &[u8]) -> Option<Delta> {
        if !SIZES.contains(&object.len()) {
            return None;
        }
        if !self.0.contains_key(template) {
            self.make_room();
            // A template has more than one object; for a single one a base would only cost memory.
            self.0.insert(template.into(), Template::default());
            return None;
        }
        let template = self.0.get_mut(template)?;
        if template.useless >= Self::USELESS {
            return None;
        }
        if let Some(base) = template.base.upgrade() {
            if let Some(delta) = Delta::new(&base, object) {
                (template.misses, template.useless) = (0, 0);
                return Some(delta);
            }
            template.misses += 1;
            if template.misses < Self::MISSES {
                return None;
            }
            template.useless += 1;
        }
        let base = Arc::new(Base(object.into()));
        (template.base, template.misses) = (Arc::downgrade(&base), 0);
        Delta::new(&base, object)
    }

    fn make_room(&mut self) {
        if self.0.len() < Self::MOST {
            return;
        }
        self.0.retain(|_, template| template.base.strong_count() > 0);
        if self.0.len() >= Self::MOST {
            self.0 = HashMap::new();
        }
    }
}

#[cfg(test)]
mod tests;
