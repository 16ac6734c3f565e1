//! The same order, given to an object that is encoded already.
//!
//! Invariant: values without an order are copied, not decoded.

use super::{Members, compare_elements, in_order, members, placed, structured};
use crate::schema::Schema;
use kaji_meta::json::{Malformed, Reader, write_string};
use std::borrow::Cow;

/// The text is no JSON.
pub type Unordered = Malformed;

/// Appends an encoded value in the order of `schema`.
///
/// # Errors
/// When the text is no JSON.
pub fn rewrite(out: &mut Vec<u8>, text: &str, schema: Option<&Schema>) -> Result<(), Unordered> {
    let mut reader = Reader::new(text);
    match (reader.peek(), schema) {
        (Some(b'{'), Some(schema)) => {
            reader.take(b'{');
            object(out, &mut reader, schema)
        }
        (Some(b'['), Some(schema)) => {
            reader.take(b'[');
            let items = schema.items.as_ref().and_then(structured);
            out.push(b'[');
            let mut first = true;
            while reader.element() {
                if !std::mem::take(&mut first) {
                    out.push(b',');
                }
                rewrite(out, reader.value()?, items)?;
            }
            out.push(b']');
            Ok(())
        }
        _ => {
            out.extend_from_slice(reader.value()?.as_bytes());
            Ok(())
        }
    }
}

struct Member<'a, 's> {
    place: u16,
    key: Cow<'a, str>,
    value: &'a str,
    schema: Option<&'s Schema>,
}

/// An object, after its `{`.
fn object(out: &mut Vec<u8>, reader: &mut Reader<'_>, schema: &Schema) -> Result<(), Unordered> {
    let how = members(schema);
    let mut found = Vec::new();
    while let Some(key) = reader.key()? {
        let value = reader.value()?;
        let (place, schema) = match how {
            Members::Fields(schema) => placed(schema, &key),
            Members::Keys(values) => (0, values),
            Members::Elements => (0, Some(schema)),
        };
        found.push(Member { place, key, value, schema });
    }
    match how {
        Members::Elements if !found.iter().all(|m| in_order(&m.key)) => {
            found.sort_by(|a, b| compare_elements(&a.key, &b.key));
        }
        _ => found.sort_by(|a, b| a.place.cmp(&b.place).then_with(|| a.key.cmp(&b.key))),
    }
    out.push(b'{');
    for (i, member) in found.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        write_string(out, &member.key);
        out.push(b':');
        rewrite(out, member.value, member.schema)?;
    }
    out.push(b'}');
    Ok(())
}
