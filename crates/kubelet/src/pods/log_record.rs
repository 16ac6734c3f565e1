//! Lines of a container's log file in CRI's format, and the text that a client gets of them.
//!
//! A line is `time stream tag text`; the tag's first part is `P` for a line of the container that goes on in the next line of its
//! stream, `F` for one that ends. Pure.
//!
//! Invariants:
//! - The text of all lines of a file, without a limit and without times, is what the container wrote.
//! - No more bytes are written than the limit.

use jiff::Timestamp;
use std::fmt;

/// Which streams a client asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Streams {
    /// Both.
    #[default]
    All,
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A line of a log file.
#[derive(Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// As written.
    pub time_text: &'a str,
    /// The same.
    pub time: Timestamp,
    /// Of standard error; else of standard output.
    pub stderr: bool,
    /// What the container wrote, with the end of the line if it wrote one.
    pub text: &'a [u8],
}

/// What is wrong with a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// It has no space.
    NoTime,
    /// Not RFC 3339.
    Time,
    /// It has one space.
    NoStream,
    /// Neither `stdout` nor `stderr`.
    Stream,
    /// It has two spaces.
    NoTag,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Malformed::NoTime => "timestamp is not found",
            Malformed::Time => "unexpected timestamp format",
            Malformed::NoStream => "stream type is not found",
            Malformed::Stream => "unexpected stream type",
            Malformed::NoTag => "log tag is not found",
        })
    }
}

fn word(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = line.iter().position(|b| *b == b' ')?;
    Some((&line[..end], &line[end + 1..]))
}

/// Reads a line, its end included.
///
/// # Errors
/// What is wrong with it.
pub fn parse(line: &[u8]) -> Result<Record<'_>, Malformed> {
    let (time, rest) = word(line).ok_or(Malformed::NoTime)?;
    let time_text = std::str::from_utf8(time).map_err(|_| Malformed::Time)?;
    let time = time_text.parse().map_err(|_| Malformed::Time)?;
    let (stream, rest) = word(rest).ok_or(Malformed::NoStream)?;
    let stderr = match stream {
        b"stdout" => false,
        b"stderr" => true,
        _ => return Err(Malformed::Stream),
    };
    let (tags, text) = word(rest).ok_or(Malformed::NoTag)?;
    let partial = tags == b"P" || tags.starts_with(b"P:");
    let text = if partial { text.strip_suffix(b"\n").unwrap_or(text) } else { text };
    Ok(Record { time_text, time, stderr, text })
}

/// What a client gets of a log's records.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// Older records are left out.
    pub since: Option<Timestamp>,
    /// Each line begins with its time.
    pub timestamps: bool,
    /// Bytes.
    pub limit: Option<u64>,
    /// Those of the others are left out.
    pub streams: Streams,
}

/// Writes records as a client gets them.
#[derive(Debug)]
pub struct Writer {
    selection: Selection,
    left: u64,
    at_line_start: bool,
}

impl Writer {
    /// Of a log from a line's start.
    #[must_use]
    pub fn new(selection: Selection) -> Writer {
        Writer { left: selection.limit.unwrap_or(u64::MAX), at_line_start: true, selection }
    }

    /// Appends a record's text. Whether there may be more: no, once the limit is reached.
    pub fn write(&mut self, record: &Record<'_>, out: &mut Vec<u8>) -> bool {
        let starts =
            std::mem::replace(&mut self.at_line_start, record.text.last().is_none_or(|last| *last == b'\n'));
        let old = self.selection.since.is_some_and(|since| record.time < since);
        let wanted = match self.selection.streams {
            Streams::All => true,
            Streams::Stdout => !record.stderr,
            Streams::Stderr => record.stderr,
        };
        if old || !wanted {
            return true;
        }
        if self.selection.timestamps && starts {
            self.push(full_width(record.time_text).as_bytes(), out);
            self.push(b" ", out);
        }
        self.push(record.text, out);
        self.left > 0
    }

    fn push(&mut self, text: &[u8], out: &mut Vec<u8>) {
        let fits = usize::try_from(self.left).unwrap_or(usize::MAX).min(text.len());
        out.extend_from_slice(&text[..fits]);
        self.left -= fits as u64;
    }
}

/// A time in RFC 3339 with nine digits of a second, in the zone that it was written in.
fn full_width(time: &str) -> String {
    let zone = time.rfind(['Z', 'z', '+', '-']).filter(|at| *at > 10).unwrap_or(time.len());
    let (time, zone) = time.split_at(zone);
    let (seconds, digits) = time.split_once(['.', ',']).unwrap_or((time, ""));
    let zone = if matches!(zone, "+00:00" | "z") { "Z" } else { zone };
    format!("{seconds}.{digits:0<9.9}{zone}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FILE: &str = "\
        2016-10-06T00:17:09.669794202Z stdout P log content 1\n\
        2016-10-06T00:17:09.669794203Z stdout F log content 2\n\
        2016-10-06T02:17:10.5+02:00 stderr F \n\
        2016-10-06T00:17:11Z stderr F:X  two  spaces\n";

    fn shown(file: &str, selection: Selection) -> String {
        let (mut writer, mut out) = (Writer::new(selection), vec![]);
        for line in file.split_inclusive('\n') {
            if !writer.write(&parse(line.as_bytes()).unwrap(), &mut out) {
                break;
            }
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn records_as_clients_get_them() {
        let since = Some("2016-10-06T00:17:10Z".parse().unwrap());
        let all = [
            Selection::default(),
            Selection { timestamps: true, ..Selection::default() },
            Selection { since, ..Selection::default() },
            Selection { streams: Streams::Stdout, timestamps: true, ..Selection::default() },
            Selection { streams: Streams::Stderr, ..Selection::default() },
            Selection { limit: Some(16), ..Selection::default() },
            Selection { limit: Some(40), timestamps: true, ..Selection::default() },
        ];
        let lines: Vec<String> =
            all.into_iter().map(|selection| format!("{:?}", shown(FILE, selection))).collect();
        expect_test::expect![[r#"
            "log content 1log content 2\n\n two  spaces\n"
            "2016-10-06T00:17:09.669794202Z log content 1log content 2\n2016-10-06T02:17:10.500000000+02:00 \n2016-10-06T00:17:11.000000000Z  two  spaces\n"
            "\n two  spaces\n"
            "2016-10-06T00:17:09.669794202Z log content 1log content 2\n"
            "\n two  spaces\n"
            "log content 1log"
            "2016-10-06T00:17:09.669794202Z log conte""#]]
        .assert_eq(&lines.join("\n"));
    }

    #[test]
    fn lines_that_are_malformed() {
        let lines = [
            "",
            "x",
            "x y",
            "2016-10-06T00:17:11Z stdout",
            "2016-10-06T00:17:11Z stdin F x",
            "2016-10-06T00:17:11Z stdout F\n",
        ];
        let found: Vec<String> =
            lines.iter().map(|line| parse(line.as_bytes()).unwrap_err().to_string()).collect();
        expect_test::expect![[r#"
            timestamp is not found
            timestamp is not found
            unexpected timestamp format
            stream type is not found
            unexpected stream type
            log tag is not found"#]]
        .assert_eq(&found.join("\n"));
    }

    proptest! {
        #[test]
        fn anything_is_parsed_or_refused(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(record) = parse(&line) {
                prop_assert!(record.text.len() <= line.len());
            }
        }

        #[test]
        fn what_a_container_wrote_is_what_clients_get(
            pieces in proptest::collection::vec(("[ -~]{0,20}", any::<bool>(), any::<bool>()), 0..20),
            limit in proptest::option::of(1_u64..200),
        ) {
            let (mut file, mut written) = (String::new(), String::new());
            for (text, ends, stderr) in pieces {
                let (stream, tag) = (["stdout", "stderr"][usize::from(stderr)], ["P", "F"][usize::from(ends)]);
                file += &format!("2026-01-01T00:00:00.1Z {stream} {tag} {text}\n");
                written += &text;
                written += if ends { "\n" } else { "" };
            }
            let most = limit.map_or(usize::MAX, |l| usize::try_from(l).unwrap());
            written.truncate(most);
            prop_assert_eq!(shown(&file, Selection { limit, ..Selection::default() }), written);
        }
    }
}
