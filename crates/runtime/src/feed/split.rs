//! Takes a list in JSON apart while it arrives: the objects in `items` and the list's `metadata`, each as soon as it is whole.
//!
//! Invariants:
//! - What is buffered is the part that is not whole yet, and what else came with its last piece.
//! - Only the nesting is checked here; what is inside an object is checked when the object is decoded. A list that ends
//!   before its closing brace is an error.

use super::Listed;
use crate::client::Error;
use bytes::BytesMut;

/// What a value at the list's top level is.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Member {
    #[default]
    Other,
    Metadata,
    Items,
}

/// The state between two pieces.
#[derive(Default)]
pub(super) struct ListSplitter {
    buffer: BytesMut,
    /// Up to here the buffer was read.
    read: usize,
    /// Open braces and brackets.
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// At the top level: where the text that was read last begins, and where it ends.
    text: (usize, usize),
    member: Member,
    /// Where the part that is being read begins.
    part: Option<usize>,
    ended: bool,
}

impl ListSplitter {
    /// Reads a piece of the list; the parts that are whole with it.
    pub fn push(&mut self, data: &[u8]) -> Result<Vec<Listed>, Error> {
        self.buffer.extend_from_slice(data);
        let mut parts = vec![];
        while let Some(byte) = self.buffer.get(self.read).copied() {
            self.read += 1;
            if self.in_string {
                self.string(byte);
                continue;
            }
            match byte {
                b'"' if !(self.depth == 2 && self.member == Member::Items) => {
                    self.in_string = true;
                    self.text.0 = self.read;
                }
                b':' if self.depth == 1 => self.member = self.named(),
                b'{' | b'[' => self.open(byte)?,
                b'}' | b']' => parts.extend(self.close()?),
                // Between the elements of `items` there are commas only.
                b',' | b' ' | b'\n' | b'\r' | b'\t' => {}
                _ if self.depth == 0 || (self.depth == 2 && self.member == Member::Items) => {
                    return Err(malformed());
                }
                _ => {}
            }
        }
        self.forget();
        Ok(parts)
    }

    /// Ends the list.
    pub fn end(&self) -> Result<(), Error> {
        if self.ended { Ok(()) } else { Err(malformed()) }
    }

    fn string(&mut self, byte: u8) {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' => self.escaped = true,
            b'"' => {
                self.in_string = false;
                self.text.1 = self.read - 1;
            }
            _ => {}
        }
    }

    fn named(&self) -> Member {
        match self.buffer.get(self.text.0..self.text.1) {
            Some(b"items") => Member::Items,
            Some(b"metadata") => Member::Metadata,
            _ => Member::Other,
        }
    }

    fn open(&mut self, byte: u8) -> Result<(), Error> {
        self.depth += 1;
        let begins = match (self.member, self.depth) {
            (Member::Metadata, 2) => true,
            (Member::Items, 3) if byte != b'{' => return Err(malformed()),
            (Member::Items, 3) => true,
            (_, 1) if byte != b'{' || self.ended => return Err(malformed()),
            _ => false,
        };
        if begins {
            self.part = Some(self.read - 1);
        }
        Ok(())
    }

    fn close(&mut self) -> Result<Option<Listed>, Error> {
        self.depth = self.depth.checked_sub(1).ok_or_else(malformed)?;
        self.ended = self.depth == 0;
        let whole = match (self.member, self.depth) {
            (Member::Metadata, 1) => Listed::Metadata,
            (Member::Items, 2) => Listed::Object,
            _ => return Ok(None),
        };
        let Some(begin) = self.part.take() else { return Ok(None) };
        let mut part = self.buffer.split_to(self.read);
        (self.read, self.text) = (0, (0, 0));
        Ok(Some(whole(part.split_off(begin).freeze())))
    }

    /// Drops what was read and is no longer needed.
    fn forget(&mut self) {
        // A text at the top level may be the name of a member, if its colon has not come yet.
        let needed = self.part.unwrap_or(if self.depth == 1 { self.text.0 } else { self.read });
        let gone = needed.min(self.read);
        drop(self.buffer.split_to(gone));
        self.read -= gone;
        self.text = (self.text.0.saturating_sub(gone), self.text.1.saturating_sub(gone));
        self.part = self.part.map(|begin| begin - gone);
    }
}

fn malformed() -> Error {
    Error::Decode("a list is malformed, or ended early".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    /// The parts of a list that comes in pieces of a size.
    fn split(list: &str, size: usize) -> String {
        let mut splitter = ListSplitter::default();
        let mut out = String::new();
        for piece in list.as_bytes().chunks(size) {
            match splitter.push(piece) {
                Ok(parts) => parts.iter().for_each(|part| out += &format!("{part:?}\n")),
                Err(error) => return out + &format!("{error}\n"),
            }
        }
        out + &splitter.end().map_or_else(|error| format!("{error}\n"), |()| String::new())
    }

    fn same_in_all_sizes(list: &str) -> String {
        let whole = split(list, list.len());
        for size in 1..list.len() {
            assert_eq!(split(list, size), whole, "in pieces of {size} bytes");
        }
        whole
    }

    #[test]
    fn finds_objects_and_metadata_however_the_list_is_cut() {
        let list = r#"{"kind":"ItemList","x":["items",{"items":[{}]}],"metadata":{"resourceVersion":"7"},"items":[
            {"a":"}]\\\"","b":[{"items":[]}]}, {"c":{}}]}
"#;
        expect![[r#"
            Metadata(b"{\"resourceVersion\":\"7\"}")
            Object(b"{\"a\":\"}]\\\\\\\"\",\"b\":[{\"items\":[]}]}")
            Object(b"{\"c\":{}}")
        "#]]
        .assert_eq(&same_in_all_sizes(list));
    }

    #[test]
    fn reads_lists_with_their_metadata_last_and_empty_ones() {
        expect![[r#"
            Object(b"{}")
            Metadata(b"{}")
        "#]]
        .assert_eq(&same_in_all_sizes(r#"{"apiVersion":"v1","items":[{}],"metadata":{}}"#));
        assert_eq!(same_in_all_sizes(r#"{"items":null,"kind":"L"}"#), "");
        assert_eq!(same_in_all_sizes(r#"{"items":[],"kind":"items"}"#), "");
    }

    #[test]
    fn refuses_what_is_cut_off_or_is_not_a_list_of_objects() {
        let refused = "decode: a list is malformed, or ended early\n";
        for list in [
            "",
            "{",
            r#"{"items":["#,
            r#"{"items":[1]}"#,
            r#"{"items":["a"]}"#,
            r#"{"items":[[]]}"#,
            "[]",
            "{}}",
            "{}{}",
            "1",
        ] {
            assert_eq!(split(list, 1), refused, "{list}");
        }
    }
}
