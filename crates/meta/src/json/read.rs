//! A cursor over JSON text that skips unwanted values quickly.

use std::borrow::Cow;

/// The text is no JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed JSON at byte {0}")]
pub struct Malformed(pub usize);

/// A cursor. See the module's text.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    text: &'a str,
    at: usize,
}

/// Eight times the same byte.
const fn eight(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

/// The high bit of each zero byte of `word`, up to the first of them exactly.
const fn zeros(word: u64) -> u64 {
    word.wrapping_sub(eight(1)) & !word & eight(0x80)
}

/// Where the next `"` or `\` is, from `at` on.
#[inline]
fn quote_or_escape(bytes: &[u8], mut at: usize) -> Option<usize> {
    let mut rest = bytes.get(at..)?;
    while let Some((chunk, after)) = rest.split_first_chunk::<8>() {
        let word = u64::from_le_bytes(*chunk);
        let found = zeros(word ^ eight(b'"')) | zeros(word ^ eight(b'\\'));
        if found != 0 {
            return Some(at + (found.trailing_zeros() / 8) as usize);
        }
        at += 8;
        rest = after;
    }
    rest.iter().position(|b| matches!(b, b'"' | b'\\')).map(|p| at + p)
}

/// Where a string ends, after its opening quote: the place after the closing one, and whether there are escapes.
#[inline]
fn end_of_string(bytes: &[u8], from: usize) -> Result<(usize, bool), Malformed> {
    let (mut from, mut escaped) = (from, false);
    loop {
        let at = quote_or_escape(bytes, from).ok_or(Malformed(from))?;
        if bytes[at] == b'"' {
            return Ok((at + 1, escaped));
        }
        escaped = true;
        // Whatever is escaped, it is no end.
        from = at + 2;
    }
}

/// What a byte outside of strings means to what passes over a container.
const CLASSES: [u8; 256] = {
    let mut classes = [OTHER; 256];
    classes[b'"' as usize] = QUOTE;
    classes[b'{' as usize] = OPENS;
    classes[b'[' as usize] = OPENS;
    classes[b'}' as usize] = CLOSES;
    classes[b']' as usize] = CLOSES;
    classes
};
const OTHER: u8 = 0;
const QUOTE: u8 = 1;
const OPENS: u8 = 2;
const CLOSES: u8 = 3;

impl<'a> Reader<'a> {
    /// At the beginning of a text.
    pub fn new(text: &'a str) -> Self {
        Reader { text, at: 0 }
    }

    /// How many bytes were read.
    pub fn position(&self) -> usize {
        self.at
    }

    /// An error at this place.
    pub fn malformed(&self) -> Malformed {
        Malformed(self.at)
    }

    fn bytes(&self) -> &'a [u8] {
        self.text.as_bytes()
    }

    /// The next byte that is no white space; it stays unread. `None` at the end.
    pub fn peek(&mut self) -> Option<u8> {
        loop {
            let byte = *self.bytes().get(self.at)?;
            if !matches!(byte, b' ' | b'\n' | b'\t' | b'\r') {
                return Some(byte);
            }
            self.at += 1;
        }
    }

    /// Reads this byte if it is the next one.
    pub fn take(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    /// The next key of an object, after its `{`, and the colon after it; `None` at its `}`, which is read.
    ///
    /// # Errors
    /// When there is neither.
    pub fn key(&mut self) -> Result<Option<Cow<'a, str>>, Malformed> {
        if self.take(b'}') {
            return Ok(None);
        }
        self.take(b',');
        let key = self.string()?;
        if self.take(b':') { Ok(Some(key)) } else { Err(self.malformed()) }
    }

    /// Whether a list, after its `[`, has a further element, which is next then; else its `]` is read.
    pub fn element(&mut self) -> bool {
        if self.take(b']') {
            return false;
        }
        self.take(b',');
        true
    }

    /// A string: a piece of the text if it has no escapes.
    ///
    /// # Errors
    /// When something else comes next.
    pub fn string(&mut self) -> Result<Cow<'a, str>, Malformed> {
        if !self.take(b'"') {
            return Err(self.malformed());
        }
        let from = self.at;
        let escaped = self.close()?;
        let piece = |from, to| self.text.get(from..to).ok_or(Malformed(from));
        if !escaped {
            return Ok(Cow::Borrowed(piece(from, self.at - 1)?));
        }
        let owned = serde_json::from_str(piece(from - 1, self.at)?);
        owned.map(Cow::Owned).map_err(|_| Malformed(from))
    }

    /// Passes over a string, after its opening quote; returns whether it has escapes.
    fn close(&mut self) -> Result<bool, Malformed> {
        let (end, escaped) = end_of_string(self.bytes(), self.at)?;
        self.at = end;
        Ok(escaped)
    }

    /// Passes over the next value and gives its text.
    ///
    /// # Errors
    /// When there is none, or it does not end.
    pub fn value(&mut self) -> Result<&'a str, Malformed> {
        let first = self.peek().ok_or(Malformed(self.at))?;
        let from = self.at;
        self.at += 1;
        match first {
            b'"' => drop(self.close()?),
            b'{' | b'[' => self.rest_of_container()?,
            b',' | b':' | b'}' | b']' => return Err(Malformed(from)),
            _ => {
                let ends = |b: &u8| matches!(b, b',' | b'}' | b']' | b' ' | b'\n' | b'\t' | b'\r');
                let rest = &self.bytes()[self.at..];
                self.at += rest.iter().position(ends).unwrap_or(rest.len());
            }
        }
        self.text.get(from..self.at).ok_or(Malformed(from))
    }

    fn rest_of_container(&mut self) -> Result<(), Malformed> {
        let bytes = self.bytes();
        let (mut at, mut depth) = (self.at, 1_usize);
        while let Some(byte) = bytes.get(at) {
            at += 1;
            match CLASSES[usize::from(*byte)] {
                OTHER => {}
                QUOTE => at = end_of_string(bytes, at)?.0,
                OPENS => depth += 1,
                _ => {
                    depth -= 1;
                    if depth == 0 {
                        self.at = at;
                        return Ok(());
                    }
                }
            }
        }
        Err(Malformed(at))
    }
}
