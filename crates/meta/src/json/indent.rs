//! JSON for people: a line for each member and item, as Go's `json.Indent` and `MarshalIndent` write it.

/// Indents JSON by so many spaces a level, without decoding it.
pub fn indent(json: &[u8], width: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(json.len() * 3 / 2);
    Indenter::new(width).push(json, &mut out);
    out
}

/// Indents JSON that comes in pieces, cut anywhere.
pub struct Indenter {
    /// Spaces a level.
    width: usize,
    depth: usize,
    /// A map or a list was opened, and what is in it, if anything, is still to come.
    opened: bool,
    in_text: bool,
    escaped: bool,
}

impl Indenter {
    /// One that indents by so many spaces a level.
    pub fn new(width: usize) -> Indenter {
        Indenter { width, depth: 0, opened: false, in_text: false, escaped: false }
    }

    /// Indents the next piece.
    pub fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        for &b in piece {
            if self.in_text {
                out.push(b);
                self.in_text = self.escaped || b != b'"';
                self.escaped = !self.escaped && b == b'\\';
            } else if !b.is_ascii_whitespace() {
                self.outside(b, out);
            }
        }
    }

    fn outside(&mut self, b: u8, out: &mut Vec<u8>) {
        let closes = matches!(b, b'}' | b']');
        match std::mem::take(&mut self.opened) {
            true if closes => return out.push(b),
            true => {
                self.depth += 1;
                self.line(out);
            }
            false if closes => {
                self.depth = self.depth.saturating_sub(1);
                self.line(out);
            }
            false => {}
        }
        out.push(b);
        match b {
            b'"' => self.in_text = true,
            b'{' | b'[' => self.opened = true,
            b',' => self.line(out),
            b':' => out.push(b' '),
            _ => {}
        }
    }

    fn line(&self, out: &mut Vec<u8>) {
        out.push(b'\n');
        out.resize(out.len() + self.depth * self.width, b' ');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use kaji_testing::json::values;
    use proptest::prelude::*;

    #[test]
    fn indents_json() {
        let json = br#"{"a":[1,{"b":"x, \"y\": {"}],"c":{},"d":[],"e":null}"#;
        expect![[r#"
            {
              "a": [
                1,
                {
                  "b": "x, \"y\": {"
                }
              ],
              "c": {},
              "d": [],
              "e": null
            }"#]]
        .assert_eq(std::str::from_utf8(&indent(json, 2)).unwrap());
    }

    proptest! {
        #[test]
        fn indenting_keeps_the_value(v in values()) {
            let out = indent(v.to_string().as_bytes(), 2);
            prop_assert_eq!(&out, &serde_json::to_vec_pretty(&v).unwrap());
        }

        #[test]
        fn pieces_are_indented_as_the_whole_is(v in values(), size in 1..7_usize) {
            let (mut indenter, mut out) = (Indenter::new(2), vec![]);
            v.to_string().as_bytes().chunks(size).for_each(|piece| indenter.push(piece, &mut out));
            prop_assert_eq!(&out, &serde_json::to_vec_pretty(&v).unwrap());
        }
    }
}
