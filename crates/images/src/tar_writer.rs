//! Writes tar archives, for `kaji image import` and for tests: ustar headers, with a pax header before each.

use crate::tar::{BLOCK, Entry, EntryKind};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// An entry with mode 0644 (0755 for a directory), of root, at the epoch.
pub fn entry(name: &str, kind: EntryKind) -> Entry {
    Entry {
        name: name.as_bytes().to_vec(),
        kind,
        link: vec![],
        mode: if kind == EntryKind::Directory { 0o755 } else { 0o644 },
        uid: 0,
        gid: 0,
        size: 0,
        mtime: (0, 0),
        device: (0, 0),
        xattrs: BTreeMap::new(),
    }
}

/// A record of a pax header.
pub fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let base = key.len() + value.len() + 3;
    let mut length = base + base.to_string().len();
    // The length counts its own digits.
    while length != base + length.to_string().len() {
        length = base + length.to_string().len();
    }
    [format!("{length} {key}=").as_bytes(), value, b"\n"].concat()
}

/// Writes an archive.
pub struct TarWriter<W> {
    inner: W,
}

impl<W: Write> TarWriter<W> {
    /// Writes to this.
    pub fn new(inner: W) -> TarWriter<W> {
        TarWriter { inner }
    }

    /// Appends an entry with its content.
    ///
    /// # Errors
    /// The archive cannot be written.
    pub fn append(&mut self, entry: &Entry, content: &[u8]) -> io::Result<()> {
        let mut pax = record("path", &entry.name);
        if !entry.link.is_empty() {
            pax.extend(record("linkpath", &entry.link));
        }
        pax.extend(record("uid", entry.uid.to_string().as_bytes()));
        pax.extend(record("gid", entry.gid.to_string().as_bytes()));
        pax.extend(record("mtime", time(entry.mtime).as_bytes()));
        for (name, value) in &entry.xattrs {
            pax.extend(record(&format!("SCHILY.xattr.{}", String::from_utf8_lossy(name)), value));
        }
        self.append_typed(b'x', "pax", &pax)?;
        let kind = match entry.kind {
            EntryKind::Regular => b'0',
            EntryKind::HardLink => b'1',
            EntryKind::Symlink => b'2',
            EntryKind::CharDevice => b'3',
            EntryKind::BlockDevice => b'4',
            EntryKind::Directory => b'5',
            EntryKind::Fifo => b'6',
        };
        self.write(kind, &entry.name, (entry.mode, entry.device), content)
    }

    /// Appends an entry of any type, with default fields.
    ///
    /// # Errors
    /// The archive cannot be written.
    pub fn append_typed(&mut self, kind: u8, name: &str, content: &[u8]) -> io::Result<()> {
        self.write(kind, name.as_bytes(), (0o644, (0, 0)), content)
    }

    /// Ends the archive.
    ///
    /// # Errors
    /// The archive cannot be written.
    pub fn finish(mut self) -> io::Result<W> {
        self.inner.write_all(&[0; 2 * BLOCK])?;
        Ok(self.inner)
    }

    fn write(
        &mut self,
        kind: u8,
        name: &[u8],
        (mode, device): (u32, (u32, u32)),
        content: &[u8],
    ) -> io::Result<()> {
        let mut block = [0; BLOCK];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &name[..name.len().min(100)]);
        put(100, format!("{mode:07o}\0").as_bytes());
        put(108, b"0000000\x000000000\0");
        put(124, format!("{:011o}\0", content.len()).as_bytes());
        put(136, b"00000000000\0");
        put(148, b"        ");
        put(156, &[kind]);
        put(257, b"ustar\x0000");
        put(329, format!("{:07o}\0{:07o}\0", device.0, device.1).as_bytes());
        let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.inner.write_all(&block)?;
        self.inner.write_all(content)?;
        let padding = content.len().next_multiple_of(BLOCK) - content.len();
        self.inner.write_all(&[0; BLOCK][..padding])
    }
}

fn time((seconds, nanos): (i64, u32)) -> String {
    if seconds < 0 && nanos > 0 {
        let (whole, rest) = (seconds + 1, 1_000_000_000 - nanos);
        let sign = if whole == 0 { "-" } else { "" };
        return format!("{sign}{whole}.{rest:09}");
    }
    format!("{seconds}.{nanos:09}")
}
