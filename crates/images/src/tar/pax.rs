//! Records of a pax extended header: `LENGTH KEY=VALUE\n`.

use super::malformed;
use std::collections::BTreeMap;
use std::io;

const XATTR: &[u8] = b"SCHILY.xattr.";
/// More attributes than the kernel keeps of a file.
const MAX_XATTRS: usize = 512;

/// The records that are used.
#[derive(Default)]
pub(super) struct Records {
    pub path: Option<Vec<u8>>,
    pub link: Option<Vec<u8>>,
    pub size: Option<u64>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub mtime: Option<(i64, u32)>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub sparse: bool,
    present: bool,
}

impl Records {
    pub fn any(&self) -> bool {
        self.present
    }

    pub fn parse(mut rest: &[u8]) -> io::Result<Records> {
        let mut records = Records { present: true, ..Records::default() };
        while !rest.is_empty() {
            let (record, after) = split(rest).ok_or_else(|| malformed("pax record"))?;
            rest = after;
            let equals = record.iter().position(|b| *b == b'=').ok_or_else(|| malformed("pax record"))?;
            records.take(&record[..equals], &record[equals + 1..])?;
        }
        Ok(records)
    }

    fn take(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        if key.is_empty() || key.contains(&0) {
            return Err(malformed("pax key"));
        }
        // An empty value takes a record back.
        let set = !value.is_empty();
        match key {
            b"path" | b"linkpath" if value.contains(&0) => return Err(malformed("NUL in a pax path")),
            b"path" => self.path = set.then(|| value.to_vec()),
            b"linkpath" => self.link = set.then(|| value.to_vec()),
            b"size" => self.size = parse(value)?,
            b"uid" => self.uid = parse(value)?,
            b"gid" => self.gid = parse(value)?,
            b"mtime" => self.mtime = if set { Some(time(value)?) } else { None },
            _ if key.starts_with(b"GNU.sparse.") => self.sparse = true,
            _ => {
                if let Some(name) = key.strip_prefix(XATTR) {
                    if self.xattrs.len() >= MAX_XATTRS {
                        return Err(malformed("too many extended attributes"));
                    }
                    self.xattrs.insert(name.to_vec(), value.to_vec());
                }
            }
        }
        Ok(())
    }
}

/// A record without its length and its end, and what follows.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let blank = bytes.iter().take(20).position(|b| *b == b' ')?;
    let digits = &bytes[..blank];
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let length: usize = std::str::from_utf8(digits).ok()?.parse().ok()?;
    if length > bytes.len() || length < blank + 2 || bytes[length - 1] != b'\n' {
        return None;
    }
    Some((&bytes[blank + 1..length - 1], &bytes[length..]))
}

fn parse<T: std::str::FromStr>(value: &[u8]) -> io::Result<Option<T>> {
    if value.is_empty() {
        return Ok(None);
    }
    if !value.iter().all(u8::is_ascii_digit) {
        return Err(malformed("pax number"));
    }
    let parsed = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
    parsed.map(Some).ok_or_else(|| malformed("pax number"))
}

/// Seconds with an optional fraction, rounded down.
fn time(value: &[u8]) -> io::Result<(i64, u32)> {
    let wrong = || malformed("pax time");
    let text = std::str::from_utf8(value).map_err(|_| wrong())?;
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    if !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return Err(wrong());
    }
    let mut nanos = 0_u32;
    for at in 0..9 {
        nanos = nanos * 10 + u32::from(fraction.as_bytes().get(at).map_or(0, |b| b - b'0'));
    }
    let whole: i64 = seconds.parse().map_err(|_| wrong())?;
    if seconds.starts_with('-') && nanos > 0 {
        return Ok((whole.checked_sub(1).ok_or_else(wrong)?, 1_000_000_000 - nanos));
    }
    Ok((whole, nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_by_their_length() {
        let records =
            Records::parse(b"12 path=a\nb\n19 mtime=-1.500000\n28 SCHILY.xattr.user.x=\x00\x01=\n\n")
                .unwrap();
        assert_eq!(records.path.unwrap(), b"a\nb");
        assert_eq!(records.mtime, Some((-2, 500_000_000)));
        assert_eq!(records.xattrs[&b"user.x"[..]], b"\x00\x01=\n");
        for bad in [
            &b"5 a=b\n"[..],
            b"99 a=b\n",
            b"a=b\n",
            b"6 a=b ",
            b"0 \n",
            b"15 path=a\0bcde\n",
            b"11 size=-1\n",
        ] {
            assert!(Records::parse(bad).is_err(), "{bad:?}");
        }
    }
}
