//! Reads tar archives as a stream: ustar, pax, and GNU's long names and large numbers.
//!
//! Only one entry is held at a time. Sparse files, which need a map of their holes, are refused. Global pax headers are
//! skipped, as Go's reader does. Names are bytes; they are checked where they are used (`unpack`).
//!
//! Invariant: whatever the bytes are, memory is bounded by [`MAX_SPECIAL`] for each kind of special header.

mod header;
mod pax;

use header::Header;
use pax::Records;
use std::collections::BTreeMap;
use std::io::{self, Read};

/// Bytes of a block.
pub(crate) const BLOCK: usize = 512;
/// Bytes of a pax header or of a long name, as in Go's reader.
const MAX_SPECIAL: u64 = 1 << 20;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A file with content.
    Regular,
    /// Another name of an earlier entry.
    HardLink,
    /// A symbolic link.
    Symlink,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A directory.
    Directory,
    /// A named pipe.
    Fifo,
}

/// The description of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// As it is in the archive.
    pub name: Vec<u8>,
    /// What it is.
    pub kind: EntryKind,
    /// Where a link leads.
    pub link: Vec<u8>,
    /// Permissions with setuid, setgid and sticky bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes of content.
    pub size: u64,
    /// Seconds since the epoch, and nanoseconds.
    pub mtime: (i64, u32),
    /// Numbers of a device.
    pub device: (u32, u32),
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Reads an archive.
pub struct TarReader<R> {
    inner: R,
    /// Bytes of the entry's content that were not read, and of its padding.
    rest: (u64, u64),
    /// Bytes read from the archive.
    position: u64,
    ended: bool,
}

impl<R: Read> TarReader<R> {
    /// Reads from the beginning of an archive.
    pub fn new(inner: R) -> TarReader<R> {
        TarReader { inner, rest: (0, 0), position: 0, ended: false }
    }

    /// The next entry, its content skipped up to there; `None` at the end.
    ///
    /// # Errors
    /// The archive cannot be read or is malformed.
    pub fn next_entry(&mut self) -> io::Result<Option<Entry>> {
        let mut records = Records::default();
        let (mut long_name, mut long_link) = (None, None);
        loop {
            let Some(header) = self.next_header()? else {
                let pending = long_name.is_some() || long_link.is_some() || records.any();
                return if pending { Err(malformed("extended header without an entry")) } else { Ok(None) };
            };
            match header.kind {
                b'x' => records = Records::parse(&self.special(&header)?)?,
                b'g' => drop(self.special(&header)?),
                b'L' => long_name = Some(text(self.special(&header)?)),
                b'K' => long_link = Some(text(self.special(&header)?)),
                _ => return self.entry(header, records, (long_name, long_link)).map(Some),
            }
        }
    }

    /// Where the content of the current entry begins, or what is left of it.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// What is left after the last entry is read to the end.
    ///
    /// # Errors
    /// The archive cannot be read.
    pub fn drain(&mut self) -> io::Result<()> {
        self.skip()?;
        io::copy(&mut self.inner, &mut io::sink()).map(drop)
    }

    /// The reader below.
    pub fn into_inner(self) -> R {
        self.inner
    }

    fn skip(&mut self) -> io::Result<()> {
        let left = self.rest.0 + self.rest.1;
        let skipped = io::copy(&mut (&mut self.inner).take(left), &mut io::sink())?;
        self.position += skipped;
        self.rest = (0, 0);
        if skipped < left { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    /// A block; `None` at the end of the file, which is allowed between entries.
    fn block(&mut self) -> io::Result<Option<[u8; BLOCK]>> {
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self.inner.read(&mut block[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.position += BLOCK as u64;
        Ok(Some(block))
    }

    fn next_header(&mut self) -> io::Result<Option<Header>> {
        if self.ended {
            return Ok(None);
        }
        self.skip()?;
        let Some(block) = self.block()? else {
            self.ended = true;
            return Ok(None);
        };
        if block == [0; BLOCK] {
            self.ended = true;
            return match self.block()? {
                Some(second) if second != [0; BLOCK] => Err(malformed("data after the end")),
                _ => Ok(None),
            };
        }
        let header = Header::parse(&block)?;
        self.content(header.size)?;
        Ok(Some(header))
    }

    /// Says how much content follows.
    fn content(&mut self, size: u64) -> io::Result<()> {
        let padded = size.checked_next_multiple_of(BLOCK as u64).ok_or_else(|| malformed("size"))?;
        self.rest = (size, padded - size);
        Ok(())
    }

    /// The content of a special header.
    fn special(&mut self, header: &Header) -> io::Result<Vec<u8>> {
        if header.size > MAX_SPECIAL {
            return Err(malformed("extended header is too large"));
        }
        let mut content = Vec::new();
        self.read_to_end(&mut content)?;
        Ok(content)
    }

    fn entry(
        &mut self,
        header: Header,
        records: Records,
        (long_name, long_link): (Option<Vec<u8>>, Option<Vec<u8>>),
    ) -> io::Result<Entry> {
        if records.sparse || header.kind == b'S' {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "tar: sparse files are not supported"));
        }
        let name = records.path.or(long_name).unwrap_or(header.name);
        let kind = match header.kind {
            // Version 7 archives mark directories by a slash.
            0 | b'0' if name.ends_with(b"/") => EntryKind::Directory,
            0 | b'0' | b'7' => EntryKind::Regular,
            b'1' => EntryKind::HardLink,
            b'2' => EntryKind::Symlink,
            b'3' => EntryKind::CharDevice,
            b'4' => EntryKind::BlockDevice,
            b'5' => EntryKind::Directory,
            b'6' => EntryKind::Fifo,
            other => {
                let text = format!("tar: unhandled header type {:?}", char::from(other));
                return Err(io::Error::new(io::ErrorKind::Unsupported, text));
            }
        };
        // Other kinds have no content, whatever they say of their size.
        let size = if kind == EntryKind::Regular { records.size.unwrap_or(header.size) } else { 0 };
        self.content(size)?;
        Ok(Entry {
            name,
            kind,
            link: records.link.or(long_link).unwrap_or(header.link),
            mode: header.mode & 0o7777,
            uid: records.uid.unwrap_or(header.uid),
            gid: records.gid.unwrap_or(header.gid),
            size,
            mtime: records.mtime.unwrap_or((header.mtime, 0)),
            device: header.device,
            xattrs: records.xattrs,
        })
    }
}

/// The content of the current entry.
impl<R: Read> Read for TarReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.rest.0).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let read = self.inner.read(&mut buffer[..most])?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.rest.0 -= read as u64;
        self.position += read as u64;
        Ok(read)
    }
}

pub(crate) fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("tar: malformed archive: {what}"))
}

/// Up to the first NUL.
fn text(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(end) = bytes.iter().position(|b| *b == 0) {
        bytes.truncate(end);
    }
    bytes
}

#[cfg(test)]
mod tests;
