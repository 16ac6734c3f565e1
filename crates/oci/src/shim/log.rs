//! A container's log file in CRI's format: time, stream, `F` for a whole line or `P` for a part of one, text.
//!
//! Invariants: a record is written by one append; a line longer than [`MOST_TEXT`] bytes becomes parts; what comes after the
//! last line feed waits for the rest of its line and is a part when the stream ends.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Bytes of text in one record.
pub const MOST_TEXT: usize = 16 << 10;

/// An open log file.
pub struct LogFile {
    path: PathBuf,
    file: File,
}

impl LogFile {
    /// Opens a log file for appending. A symbolic link in its place is refused: containers can have the directory of logs as a
    /// volume.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn open(path: &Path) -> io::Result<LogFile> {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o640)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
            .open(path)?;
        Ok(LogFile { path: path.to_owned(), file })
    }

    /// Opens it anew, after it was renamed.
    ///
    /// # Errors
    /// Those of the file system; the former file stays open then.
    pub fn reopen(&mut self) -> io::Result<()> {
        *self = LogFile::open(&self.path)?;
        Ok(())
    }

    /// Appends records.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn append(&mut self, records: &[u8]) -> io::Result<()> {
        self.file.write_all(records)
    }
}

/// Turns one stream's bytes into records.
pub struct Records {
    stream: &'static str,
    line: Vec<u8>,
}

impl Records {
    /// Of `stdout` or `stderr`.
    pub fn of(stream: &'static str) -> Records {
        Records { stream, line: vec![] }
    }

    /// The records that bytes of the stream complete, at a time in nanoseconds since the epoch.
    pub fn push(&mut self, bytes: &[u8], now_nanos: i64) -> Vec<u8> {
        let mut records = Vec::with_capacity(bytes.len() + 64);
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (mut text, ends) = match piece.split_last() {
                Some((b'\n', text)) => (text, true),
                _ => (piece, false),
            };
            while self.line.len() + text.len() > MOST_TEXT {
                let (now, later) = text.split_at(MOST_TEXT - self.line.len());
                self.line.extend_from_slice(now);
                self.record(b'P', now_nanos, &mut records);
                text = later;
            }
            self.line.extend_from_slice(text);
            if ends {
                self.record(b'F', now_nanos, &mut records);
            }
        }
        records
    }

    /// What is left of the stream when it ends.
    pub fn finish(&mut self, now_nanos: i64) -> Vec<u8> {
        let mut records = vec![];
        if !self.line.is_empty() {
            self.record(b'P', now_nanos, &mut records);
        }
        records
    }

    fn record(&mut self, tag: u8, now_nanos: i64, records: &mut Vec<u8>) {
        records.extend_from_slice(timestamp(now_nanos).as_bytes());
        records.push(b' ');
        records.extend_from_slice(self.stream.as_bytes());
        records.extend_from_slice(&[b' ', tag, b' ']);
        records.extend_from_slice(&self.line);
        records.push(b'\n');
        self.line.clear();
    }
}

/// RFC 3339 with nanoseconds, in UTC.
fn timestamp(nanos: i64) -> String {
    let seconds = nanos.div_euclid(1_000_000_000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days are counted from the 1st of March of the year 0, so that a leap day is the last of its year.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    let fraction = nanos.rem_euclid(1_000_000_000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction:09}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_times() {
        assert_eq!(timestamp(0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(timestamp(1_709_210_096_000_000_001), "2024-02-29T12:34:56.000000001Z");
        assert_eq!(timestamp(4_102_444_799_999_999_999), "2099-12-31T23:59:59.999999999Z");
    }

    #[test]
    fn splits_lines_and_keeps_what_is_not_ended() {
        let mut records = Records::of("stdout");
        let text = String::from_utf8(records.push(b"one\ntwo\nth", 0)).unwrap();
        assert_eq!(
            text,
            "1970-01-01T00:00:00.000000000Z stdout F one\n1970-01-01T00:00:00.000000000Z stdout F two\n"
        );
        let text = String::from_utf8(records.push(b"ree\n\n", 0)).unwrap();
        assert!(text.contains("stdout F three\n") && text.ends_with("stdout F \n"), "{text}");
        records.push(b"rest", 0);
        assert!(String::from_utf8(records.finish(0)).unwrap().ends_with("stdout P rest\n"));
        assert!(records.finish(0).is_empty());
    }

    #[test]
    fn long_lines_become_parts() {
        let mut records = Records::of("stderr");
        let mut line = vec![b'a'; MOST_TEXT * 2 + 5];
        line.push(b'\n');
        let text = String::from_utf8(records.push(&line, 0)).unwrap();
        let tags: Vec<&str> = text.lines().map(|l| l.split(' ').nth(2).unwrap()).collect();
        assert_eq!(tags, ["P", "P", "F"]);
        // A line of exactly as many bytes as fit is whole.
        let mut line = vec![b'a'; MOST_TEXT];
        line.push(b'\n');
        assert_eq!(records.push(&line, 0).iter().filter(|b| **b == b'\n').count(), 1);
    }
}
