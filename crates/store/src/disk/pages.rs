//! The database's file as it lies on the disk, read page by page and without the database library: for what has to know which
//! page is damaged, and what the others still hold. Source of the layout: redb's `docs/design.md`, file format 3.
//!
//! Every page is named by a pointer that has the XXH3-128 of its content, from the commit slots in the header down, so that a page
//! that matches its pointer is the one that was committed. Invariants: nothing is written; a page that does not match is
//! reported with the range of keys that it is about; below one, only pages are followed that match, since a pointer in it may lead to a
//! page of another time; nothing panics, whatever the file holds, and no more memory is taken than the file has bytes.

use super::backend::io_error;
use crate::StoreError;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use twox_hash::XxHash3_128;

/// The smallest page; others are a power of two times as large.
pub(super) const PAGE: u64 = 4096;
const MAGIC: [u8; 9] = [b'r', b'e', b'd', b'b', 0x1a, 0x0a, 0xa9, 0x0d, 0x0a];
/// The header and both commit slots.
const HEADER: usize = 320;
const SLOTS: [usize; 2] = [64, 192];
const SLOT: usize = 128;
const SLOT_CHECKSUM: usize = 112;
const FILE_FORMAT: u8 = 3;
const MAX_ORDER: u64 = 20;
/// Pages of a region, which the header says; the default of the library, for a header that is damaged.
const REGION_PAGES: u64 = 1 << 20;
/// A tree of this height has more leaves than a file can have.
const MAX_DEPTH: usize = 40;
const LEAF: u8 = 1;
const BRANCH: u8 = 2;

/// Where a page is, and what its content has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pointer {
    number: u64,
    checksum: u128,
    /// Of all that it was read from nothing was damaged, so that a page that does not match is damaged, and not another one.
    trusted: bool,
}

/// A commit of the database.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub transaction: u64,
    pub user: Option<Pointer>,
    pub system: Option<Pointer>,
}

/// What the header says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    /// The commit slots that are intact.
    pub slots: [Option<Slot>; 2],
    /// The database was closed, and the slot that was in use then is the last one: the library does not check its pages.
    pub closed: bool,
    /// The database was closed, and the slot that was in use then is damaged.
    pub lost_slot: bool,
    /// The fixed part is as the library writes it.
    pub intact: bool,
}

impl Header {
    /// The last commit of which the slot is intact, and the one before.
    pub fn by_age(&self) -> (Option<Slot>, Option<Slot>) {
        let [first, second] = self.slots;
        match (first.map(|s| s.transaction), second.map(|s| s.transaction)) {
            (Some(a), Some(b)) if a >= b => (first, second),
            (Some(_), None) => (first, None),
            _ => (second, first),
        }
    }
}

/// Lengths of keys and values, where all of a table have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Widths {
    pub key: Option<usize>,
    pub value: Option<usize>,
}

/// A table, as the tree of tables describes it.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub name: String,
    pub root: Option<Pointer>,
    pub widths: Widths,
}

/// Where something damaged is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DamagedPage {
    pub offset: u64,
    pub len: u64,
    /// The largest key before it and the largest one that it may have; `None` without a limit.
    pub keys: (Option<Vec<u8>>, Option<Vec<u8>>),
}

/// A row that was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a> {
    pub key: &'a [u8],
    pub value: &'a [u8],
    /// Where the value is in the file.
    pub value_at: u64,
    /// The page is as it was committed.
    pub intact: bool,
}

/// What a walk through a tree shows.
pub(super) enum Found<'a> {
    Row(Row<'a>),
    Damaged(DamagedPage),
}

/// How much of a tree is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    Rows,
    /// All but the leaves of a tree that is more than one page.
    Branches,
}

/// An open file.
#[derive(Debug)]
pub(super) struct PageFile {
    file: File,
    len: u64,
    region_header_pages: u64,
    region_pages: u64,
    pub header: Header,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk::<N>().copied()
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    number(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    number(bytes, at).map(u64::from_le_bytes)
}

fn u128_at(bytes: &[u8], at: usize) -> Option<u128> {
    number(bytes, at).map(u128::from_le_bytes)
}

fn pointer(bytes: &[u8], at: usize, trusted: bool) -> Option<Pointer> {
    Some(Pointer { number: u64_at(bytes, at)?, checksum: u128_at(bytes, at + 8)?, trusted })
}

fn slot(bytes: &[u8]) -> Option<Slot> {
    let checksum = u128_at(bytes, SLOT_CHECKSUM)?;
    if bytes.first() != Some(&FILE_FORMAT) || XxHash3_128::oneshot(bytes.get(..SLOT_CHECKSUM)?) != checksum {
        return None;
    }
    let root = |flag: usize, at| if bytes.get(flag) == Some(&0) { None } else { pointer(bytes, at, true) };
    Some(Slot { transaction: u64_at(bytes, 104)?, user: root(1, 8), system: root(2, 40) })
}

impl PageFile {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn open(path: &Path) -> Result<PageFile, StoreError> {
        let file = File::open(path).map_err(|e| io_error(path, &e))?;
        let len = file.metadata().map_err(|e| io_error(path, &e))?.len();
        let mut bytes = [0; HEADER];
        let there = usize::try_from(len).unwrap_or(HEADER).min(HEADER);
        file.read_exact_at(&mut bytes[..there], 0).map_err(|e| io_error(path, &e))?;
        let field = |at| u32_at(&bytes, at).map_or(0, u64::from);
        let (page, header_pages, region_pages) = (field(12), field(16), field(20));
        let sizes =
            page == PAGE && (1..=REGION_PAGES).contains(&region_pages) && header_pages <= REGION_PAGES;
        let slots = SLOTS.map(|at| bytes.get(at..at + SLOT).and_then(slot));
        let in_use = usize::from(bytes[9] & 1);
        let (closed, [used, other]) = (bytes[9] & 2 == 0, [slots[in_use], slots[1 - in_use]]);
        let header = Header {
            slots,
            closed: closed
                && used.is_some_and(|used| other.is_none_or(|other| other.transaction <= used.transaction)),
            lost_slot: closed && used.is_none(),
            intact: bytes.starts_with(&MAGIC) && sizes,
        };
        let (region_header_pages, region_pages) =
            if sizes { (header_pages, region_pages) } else { (0, REGION_PAGES) };
        Ok(PageFile { file, len, region_header_pages, region_pages, header })
    }

    /// Where a page is in the file; `None` if that is not in the file.
    fn place(&self, number: u64) -> Option<Range<u64>> {
        let order = number >> 59;
        if order > MAX_ORDER {
            return None;
        }
        let (index, region) = (number & (0xf_ffff >> order), (number >> 20) & 0xf_ffff);
        let size = PAGE << order;
        let region_size = (self.region_header_pages + self.region_pages) * PAGE;
        let start = PAGE + region * region_size + self.region_header_pages * PAGE + index * size;
        let end = start.checked_add(size)?;
        (end <= self.len).then_some(start..end)
    }

    /// Reads bytes; `None` if they cannot be read.
    pub fn read(&self, place: Range<u64>) -> Option<Vec<u8>> {
        if place.end > self.len {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(place.end.checked_sub(place.start)?).ok()?];
        self.file.read_exact_at(&mut bytes, place.start).ok()?;
        Some(bytes)
    }

    /// Walks through a tree, and answers with the number of its intact pages.
    pub fn walk(&self, root: Pointer, widths: Widths, depth: Depth, visit: &mut dyn FnMut(Found<'_>)) -> u64 {
        let height = match depth {
            Depth::Rows => MAX_DEPTH,
            Depth::Branches => self.height(root, widths).saturating_sub(1).max(1),
        };
        let mut walk = Walk { file: self, widths, visit, pages: 0 };
        walk.page(root, (None, None), height);
        walk.pages
    }

    /// How many pages are above each other; as many as can be where one of them is damaged.
    fn height(&self, root: Pointer, widths: Widths) -> usize {
        let (mut height, mut next) = (1, root);
        while height < MAX_DEPTH {
            let bytes = self.place(next.number).and_then(|place| self.read(place)).unwrap_or_default();
            match Node::parse(&bytes, widths).filter(|node| node.matches(&bytes, next)) {
                Some(Node::Leaf { .. }) => return height,
                Some(Node::Branch { children, .. }) if !children.is_empty() => {
                    (height, next) = (height + 1, children[0]);
                }
                _ => break,
            }
        }
        MAX_DEPTH
    }

    /// The tables of a tree of them, and what is damaged in it.
    pub fn tables(&self, root: Pointer) -> (Vec<Table>, Vec<DamagedPage>, u64) {
        let (mut tables, mut damaged) = (vec![], vec![]);
        let pages = self.walk(root, Widths::default(), Depth::Rows, &mut |found| match found {
            Found::Row(row) => tables.extend(table(row)),
            Found::Damaged(page) => damaged.push(page),
        });
        (tables, damaged, pages)
    }
}

/// Reads the description of a table.
fn table(row: Row<'_>) -> Option<Table> {
    let value = row.value;
    let flag = |at| value.get(at).map(|flag| *flag != 0);
    let width = |at| Some(if flag(at)? { Some(u32_at(value, at + 1)? as usize) } else { None });
    Some(Table {
        name: std::str::from_utf8(row.key).ok()?.to_owned(),
        root: if flag(9)? { Some(pointer(value, 10, row.intact)?) } else { None },
        widths: Widths { key: width(42)?, value: width(47)? },
    })
}

/// A page's content.
enum Node {
    Leaf {
        rows: Vec<(Range<usize>, Range<usize>)>,
        end: usize,
    },
    Branch {
        children: Vec<Pointer>,
        /// Between the children.
        keys: Vec<Range<usize>>,
        end: usize,
    },
}

impl Node {
    /// Reads a page as far as it can be one.
    fn parse(bytes: &[u8], widths: Widths) -> Option<Node> {
        let count = usize::from(u16::from_le_bytes(number(bytes, 2)?));
        match bytes.first() {
            Some(&LEAF) if count > 0 => leaf(bytes, count, widths),
            Some(&BRANCH) if count > 0 => branch(bytes, count, widths),
            _ => None,
        }
    }

    fn matches(&self, bytes: &[u8], pointer: Pointer) -> bool {
        let (Node::Leaf { end, .. } | Node::Branch { end, .. }) = self;
        bytes.get(..*end).is_some_and(|content| XxHash3_128::oneshot(content) == pointer.checksum)
    }
}

/// Ranges of `count` fields one behind the other from `start` on: of one length, or with their ends at `ends`.
fn fields(
    bytes: &[u8],
    (start, count): (usize, usize),
    width: Option<usize>,
    ends: usize,
) -> Option<Vec<Range<usize>>> {
    let mut from = start;
    (0..count)
        .map(|n| {
            let to = match width {
                Some(width) => from.checked_add(width)?,
                None => u32_at(bytes, ends + 4 * n)? as usize,
            };
            let field = from..to;
            bytes.get(field.clone())?;
            from = to;
            Some(field)
        })
        .collect()
}

fn leaf(bytes: &[u8], count: usize, widths: Widths) -> Option<Node> {
    let ends = |width: Option<usize>| if width.is_none() { 4 * count } else { 0 };
    let value_ends = 4 + ends(widths.key);
    let keys = fields(bytes, (value_ends + ends(widths.value), count), widths.key, 4)?;
    let values = fields(bytes, (keys.last()?.end, count), widths.value, value_ends)?;
    let end = values.last()?.end;
    Some(Node::Leaf { rows: keys.into_iter().zip(values).collect(), end })
}

fn branch(bytes: &[u8], count: usize, widths: Widths) -> Option<Node> {
    let checksums = 8;
    let numbers = checksums + 16 * (count + 1);
    let ends = numbers + 8 * (count + 1);
    let start = if widths.key.is_none() { ends + 4 * count } else { ends };
    let keys = fields(bytes, (start, count), widths.key, ends)?;
    let children = (0..=count).map(|n| {
        let (checksum, number) = (u128_at(bytes, checksums + 16 * n)?, u64_at(bytes, numbers + 8 * n)?);
        Some(Pointer { number, checksum, trusted: true })
    });
    let children = children.collect::<Option<_>>()?;
    let end = keys.last()?.end;
    Some(Node::Branch { children, keys, end })
}

struct Walk<'a> {
    file: &'a PageFile,
    widths: Widths,
    visit: &'a mut dyn FnMut(Found<'_>),
    pages: u64,
}

type Keys = (Option<Vec<u8>>, Option<Vec<u8>>);

impl Walk<'_> {
    fn page(&mut self, at: Pointer, keys: Keys, height: usize) {
        let place = self.file.place(at.number);
        let damaged = |keys: Keys| {
            let place = place.clone().unwrap_or(0..0);
            Found::Damaged(DamagedPage { offset: place.start, len: place.end - place.start, keys })
        };
        let bytes = place.clone().and_then(|place| self.file.read(place));
        let node = bytes.as_deref().and_then(|bytes| Node::parse(bytes, self.widths));
        let (Some(bytes), Some(node), Some(start)) = (&bytes, node, place.as_ref().map(|p| p.start)) else {
            return (self.visit)(damaged(keys));
        };
        let intact = node.matches(bytes, at);
        self.pages += u64::from(intact);
        if !intact {
            (self.visit)(damaged(keys.clone()));
            // Some other page, perhaps.
            if !at.trusted {
                return;
            }
        }
        match node {
            Node::Leaf { rows, .. } => {
                for (key, value) in rows {
                    let value_at = start + value.start as u64;
                    let row = Row { key: &bytes[key], value: &bytes[value], value_at, intact };
                    (self.visit)(Found::Row(row));
                }
            }
            Node::Branch { children, keys: between, .. } if height > 1 => {
                let key = |n: usize| between.get(n).map(|key| bytes[key.clone()].to_vec());
                for (n, child) in children.into_iter().enumerate() {
                    let first = n.checked_sub(1).and_then(key).or_else(|| keys.0.clone());
                    let last = key(n).or_else(|| keys.1.clone());
                    if intact || self.matches(child) {
                        self.page(child, (first, last), height - 1);
                    } else {
                        (self.visit)(Found::Damaged(DamagedPage { offset: 0, len: 0, keys: (first, last) }));
                    }
                }
            }
            Node::Branch { .. } => {}
        }
    }

    /// Whether there is a page that is what a pointer of a damaged page says.
    fn matches(&self, at: Pointer) -> bool {
        let bytes = self.file.place(at.number).and_then(|place| self.file.read(place));
        bytes.is_some_and(|bytes| {
            Node::parse(&bytes, self.widths).is_some_and(|node| node.matches(&bytes, at))
        })
    }
}
