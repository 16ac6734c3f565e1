//! Finished files of the archive: frames in compressed blocks, with an index by the hash of the key.
//!
//! Layout: blocks (compressed length, length, checksum, bytes); the footer: offsets of the blocks, then the index, sorted; the trailer,
//! of [`TRAILER`] bytes: where the footer is, what the file covers, a checksum, and the magic.
//!
//! Invariants: a file has its name only when all of it is on the disk; a block that is damaged takes only itself with it.

use crate::record::{Change, Reader, Record, checksum};
use kaji_store::Revision;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

const MAGIC: &[u8; 8] = b"KAJIHIS1";
const TRAILER: usize = 64;
const BLOCK_HEADER: usize = 12;
/// Bytes of frames in a block, about: one is decompressed for a record of it.
const BLOCK: usize = 256 << 10;
const LEVEL: i32 = 3;
/// The longest block and footer that are read: a record may be larger than a block should be.
const LONGEST: usize = 256 << 20;

/// A finished file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub path: PathBuf,
    /// Its bytes.
    pub bytes: u64,
    /// The last revision that it covers.
    pub last_revision: Revision,
    /// When its last record was made, milliseconds of the epoch.
    pub last_time: i64,
    footer: u64,
    footer_length: u32,
    footer_crc: u32,
}

/// Where a record is: the block's number, the offset in it.
type Place = (u32, u32);

struct Footer {
    blocks: Vec<u64>,
    index: Vec<(u64, Place)>,
}

fn damaged(path: &Path, what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", path.display()))
}

/// Writes a finished file of frames.
pub(crate) fn write(path: &Path, frames: &[u8]) -> io::Result<Segment> {
    let temporary = path.with_extension("tmp");
    if let Err(error) = fs::remove_file(&temporary)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let mut footer = Footer { blocks: vec![], index: vec![] };
    let (mut at, mut start, mut end) = (0, 0, 0);
    let (mut last_revision, mut last_time) = (0, i64::MIN);
    while end < frames.len() {
        let Some((record, length)) = Record::read(&frames[end..]) else {
            return Err(damaged(path, "what is to be written is damaged"));
        };
        if record.change != Change::Former {
            last_revision = record.revision.max(last_revision);
        }
        last_time = record.time.max(last_time);
        if let Some(hash) = record.hash() {
            footer.index.push((hash, (footer.blocks.len() as u32, (end - start) as u32)));
        }
        end += length;
        if end - start >= BLOCK || end == frames.len() {
            footer.blocks.push(at);
            at += write_block(&mut file, &frames[start..end])?;
            start = end;
        }
    }
    // By place among equals: in the order in which they were written.
    footer.index.sort_unstable();
    let bytes = footer.encode();
    file.write_all(&bytes)?;
    let segment = Segment {
        path: path.to_owned(),
        bytes: at + bytes.len() as u64 + TRAILER as u64,
        last_revision,
        last_time,
        footer: at,
        footer_length: bytes.len() as u32,
        footer_crc: checksum(&bytes),
    };
    file.write_all(&segment.trailer())?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    if let Some(parent) = path.parent() {
        File::open(parent)?.sync_all()?;
    }
    Ok(segment)
}

fn write_block(file: &mut File, frames: &[u8]) -> io::Result<u64> {
    let compressed = zstd::bulk::compress(frames, LEVEL)?;
    let mut header = Vec::with_capacity(BLOCK_HEADER);
    for number in [compressed.len() as u32, frames.len() as u32, checksum(&compressed)] {
        header.extend_from_slice(&number.to_le_bytes());
    }
    file.write_all(&header)?;
    file.write_all(&compressed)?;
    Ok((BLOCK_HEADER + compressed.len()) as u64)
}

impl Footer {
    fn encode(&self) -> Vec<u8> {
        let mut out = vec![];
        out.extend_from_slice(&(self.blocks.len() as u32).to_le_bytes());
        self.blocks.iter().for_each(|at| out.extend_from_slice(&at.to_le_bytes()));
        for (hash, (block, offset)) in &self.index {
            out.extend_from_slice(&hash.to_le_bytes());
            out.extend_from_slice(&block.to_le_bytes());
            out.extend_from_slice(&offset.to_le_bytes());
        }
        out
    }

    fn decode(bytes: &[u8]) -> Option<Footer> {
        let mut reader = Reader(bytes);
        let mut footer = Footer { blocks: vec![], index: vec![] };
        for _ in 0..reader.u32()? {
            footer.blocks.push(reader.u64()?);
        }
        while !reader.0.is_empty() {
            footer.index.push((reader.u64()?, (reader.u32()?, reader.u32()?)));
        }
        Some(footer)
    }

    fn places(&self, hash: u64) -> impl Iterator<Item = Place> + '_ {
        let from = self.index.partition_point(|(other, _)| *other < hash);
        self.index[from..].iter().take_while(move |(other, _)| *other == hash).map(|(_, place)| *place)
    }
}

impl Segment {
    fn trailer(&self) -> [u8; TRAILER] {
        let mut out = Vec::with_capacity(TRAILER);
        out.extend_from_slice(&self.footer.to_le_bytes());
        out.extend_from_slice(&self.footer_length.to_le_bytes());
        out.extend_from_slice(&self.footer_crc.to_le_bytes());
        out.extend_from_slice(&self.last_revision.to_le_bytes());
        out.extend_from_slice(&self.last_time.to_le_bytes());
        out.resize(TRAILER - 12, 0);
        out.extend_from_slice(&checksum(&out).to_le_bytes());
        out.extend_from_slice(MAGIC);
        let mut trailer = [0; TRAILER];
        trailer.copy_from_slice(&out);
        trailer
    }

    /// Reads the trailer of a file.
    ///
    /// # Errors
    /// When it cannot be read, or is no trailer.
    pub fn open(path: &Path) -> io::Result<Segment> {
        let mut file = File::open(path)?;
        let bytes = file.metadata()?.len();
        if bytes < TRAILER as u64 {
            return Err(damaged(path, "too short"));
        }
        file.seek(SeekFrom::Start(bytes - TRAILER as u64))?;
        let mut trailer = [0; TRAILER];
        file.read_exact(&mut trailer)?;
        let (covered, rest) = trailer.split_at(TRAILER - 12);
        let read = || {
            let mut reader = Reader(covered);
            let (footer, footer_length, footer_crc) = (reader.u64()?, reader.u32()?, reader.u32()?);
            let (last_revision, last_time) = (reader.u64()?, reader.u64()?.cast_signed());
            let crc = Reader(rest).u32()?;
            let whole = crc == checksum(covered) && &rest[4..] == MAGIC;
            let path = path.to_owned();
            let segment =
                Segment { path, bytes, last_revision, last_time, footer, footer_length, footer_crc };
            whole.then_some(segment)
        };
        read().ok_or_else(|| damaged(path, "its end is damaged"))
    }

    fn footer(&self, file: &File) -> io::Result<Footer> {
        let mut bytes = vec![0; (self.footer_length as usize).min(LONGEST)];
        file.read_exact_at(&mut bytes, self.footer)?;
        let footer = Some(bytes).filter(|bytes| checksum(bytes) == self.footer_crc);
        let footer = footer.and_then(|bytes| Footer::decode(&bytes));
        footer.ok_or_else(|| damaged(&self.path, "its index is damaged"))
    }

    fn block(&self, file: &File, at: u64) -> io::Result<Vec<u8>> {
        let wrong = || damaged(&self.path, &format!("its block at {at} is damaged"));
        let mut header = [0; BLOCK_HEADER];
        file.read_exact_at(&mut header, at)?;
        let mut reader = Reader(&header);
        let (compressed, length, crc) = match (reader.u32(), reader.u32(), reader.u32()) {
            (Some(compressed), Some(length), Some(crc)) => (compressed as usize, length as usize, crc),
            _ => return Err(wrong()),
        };
        if compressed as u64 > self.bytes || length > LONGEST {
            return Err(wrong());
        }
        let mut bytes = vec![0; compressed];
        file.read_exact_at(&mut bytes, at + BLOCK_HEADER as u64)?;
        if checksum(&bytes) != crc {
            return Err(wrong());
        }
        zstd::bulk::decompress(&bytes, length).map_err(|_| wrong())
    }

    /// Calls `with` for each record of these hashes, in the order in which they were written. What is damaged goes to `lost`.
    pub fn find(
        &self,
        hashes: &[u64],
        mut with: impl FnMut(Record),
        mut lost: impl FnMut(io::Error),
    ) -> io::Result<()> {
        let file = File::open(&self.path)?;
        let footer = self.footer(&file)?;
        let mut places: Vec<Place> = hashes.iter().flat_map(|hash| footer.places(*hash)).collect();
        places.sort_unstable();
        places.dedup();
        let mut open: Option<(u32, Option<Vec<u8>>)> = None;
        for (block, offset) in places {
            if open.as_ref().is_none_or(|(number, _)| *number != block) {
                let at = footer.blocks.get(block as usize);
                let at =
                    at.ok_or_else(|| damaged(&self.path, "its index names a block that is not there"))?;
                open = Some((block, self.block(&file, *at).map_err(&mut lost).ok()));
            }
            let frames = open.as_ref().and_then(|(_, frames)| frames.as_deref());
            let Some(rest) = frames.and_then(|frames| frames.get(offset as usize..)) else { continue };
            match Record::read(rest) {
                Some((record, _)) => with(record),
                None => lost(damaged(&self.path, "a record is damaged")),
            }
        }
        Ok(())
    }

    /// Calls `with` for the frames of each block, in order, until it returns false.
    ///
    /// # Errors
    /// When the file has no index that can be read.
    pub fn each_block(&self, mut with: impl FnMut(io::Result<Vec<u8>>) -> bool) -> io::Result<()> {
        let file = File::open(&self.path)?;
        let footer = self.footer(&file)?;
        let mut blocks = footer.blocks.iter();
        while blocks.next().is_some_and(|at| with(self.block(&file, *at))) {}
        Ok(())
    }

    /// All frames that can be read.
    pub fn frames(&self, mut lost: impl FnMut(io::Error)) -> io::Result<Vec<u8>> {
        let mut frames = vec![];
        self.each_block(|block| {
            match block {
                Ok(block) => frames.extend_from_slice(&block),
                Err(error) => lost(error),
            }
            true
        })?;
        Ok(frames)
    }

    /// The frames of its first block.
    pub fn first_block(&self) -> io::Result<Vec<u8>> {
        self.block(&File::open(&self.path)?, 0)
    }

    /// Whether it has records of a hash.
    pub fn has(&self, hash: u64) -> io::Result<bool> {
        Ok(self.footer(&File::open(&self.path)?)?.places(hash).next().is_some())
    }
}
