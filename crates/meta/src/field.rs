//! Field paths and the errors that validation reports about fields.
//!
//! The texts are those of apimachinery's `util/validation/field`: `spec.x[0]: Invalid value: "v": detail`.

use crate::text;
use serde_json::Value;
use std::{
    cell::Cell,
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
};

/// The path from an object's root to a field, kept as its printed form: `spec.containers[0].name`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path {
    text: Text,
}

/// Bytes of a path that are kept in place. Validation makes a path for each field that it checks, to use it only when
/// something is wrong there: most of them should cost no allocation.
const IN_PLACE: usize = 62;

#[derive(Clone)]
enum Text {
    /// So many of the bytes are text.
    InPlace(u8, [u8; IN_PLACE]),
    Long(String),
    /// See [`without_paths`].
    LeftOut,
}

thread_local! {
    static LEAVE_OUT: Cell<bool> = const { Cell::new(false) };
}

/// Runs a validation of which only the number of errors matters: paths that are made on this thread meanwhile have no text,
/// and cost next to nothing. Most objects are valid; for the others the caller validates once more, with paths.
pub fn without_paths<T>(validate: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            LEAVE_OUT.set(self.0);
        }
    }
    let _restore = Restore(LEAVE_OUT.replace(true));
    validate()
}

impl Text {
    fn bytes(&self) -> &[u8] {
        match self {
            Text::InPlace(len, bytes) => &bytes[..usize::from(*len)],
            Text::Long(text) => text.as_bytes(),
            Text::LeftOut => &[],
        }
    }

    fn as_str(&self) -> &str {
        match self {
            // It is made of whole strings only.
            Text::InPlace(..) => std::str::from_utf8(self.bytes()).unwrap_or_default(),
            Text::Long(text) => text,
            Text::LeftOut => "",
        }
    }

    /// This and more texts.
    fn with(&self, parts: [&str; 3]) -> Text {
        let own = self.bytes();
        let whole = own.len() + parts[0].len() + parts[1].len() + parts[2].len();
        match u8::try_from(whole) {
            Ok(len) if whole <= IN_PLACE => {
                let (mut bytes, mut at) = match self {
                    // A copy of fixed length takes fewer instructions than one of the text alone.
                    Text::InPlace(len, bytes) => (*bytes, usize::from(*len)),
                    Text::Long(text) => {
                        let mut bytes = [0; IN_PLACE];
                        bytes[..text.len()].copy_from_slice(text.as_bytes());
                        (bytes, text.len())
                    }
                    Text::LeftOut => ([0; IN_PLACE], 0),
                };
                for part in parts {
                    match part.as_bytes() {
                        [] => {}
                        [byte] => bytes[at] = *byte,
                        part => bytes[at..at + part.len()].copy_from_slice(part),
                    }
                    at += part.len();
                }
                Text::InPlace(len, bytes)
            }
            _ => {
                let mut text = String::with_capacity(whole);
                text.push_str(self.as_str());
                parts.iter().for_each(|part| text.push_str(part));
                Text::Long(text)
            }
        }
    }
}

impl Default for Text {
    fn default() -> Self {
        Text::InPlace(0, [0; IN_PLACE])
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Text) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Text {}

impl PartialOrd for Text {
    fn partial_cmp(&self, other: &Text) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Text {
    fn cmp(&self, other: &Text) -> Ordering {
        self.bytes().cmp(other.bytes())
    }
}

impl Hash for Text {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl Path {
    /// The path of a top-level field.
    pub fn new(name: &str) -> Self {
        Self::root().extend([name, "", ""])
    }

    /// The path of the object itself. It prints as `<nil>`; its children print without a leading dot.
    pub fn root() -> Self {
        Self { text: if LEAVE_OUT.get() { Text::LeftOut } else { Text::default() } }
    }

    /// Whether this is the object itself.
    pub fn is_root(&self) -> bool {
        self.text.bytes().is_empty()
    }

    #[inline]
    fn extend(&self, parts: [&str; 3]) -> Self {
        if matches!(self.text, Text::LeftOut) {
            return Self { text: Text::LeftOut };
        }
        Self { text: self.text.with(parts) }
    }

    /// The named field of this one.
    #[must_use]
    #[inline]
    pub fn child(&self, name: &str) -> Self {
        self.extend([if self.is_root() { "" } else { "." }, name, ""])
    }

    /// The item of this list at an index.
    #[must_use]
    #[inline]
    pub fn index(&self, index: usize) -> Self {
        const SMALL: [&str; 8] = ["0", "1", "2", "3", "4", "5", "6", "7"];
        if matches!(self.text, Text::LeftOut) {
            return Self { text: Text::LeftOut };
        }
        match SMALL.get(index) {
            Some(digit) => self.extend(["[", digit, "]"]),
            None => self.extend(["[", &index.to_string(), "]"]),
        }
    }

    /// The entry of this map under a key.
    #[must_use]
    #[inline]
    pub fn key(&self, key: &str) -> Self {
        self.extend(["[", key, "]"])
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_root() { "<nil>" } else { self.text.as_str() })
    }
}

impl From<&str> for Path {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

/// What is wrong with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ErrorType {
    /// A value that refers to something that does not exist.
    NotFound,
    /// A value that must be given and is not.
    Required,
    /// A value that must be unique and is not.
    Duplicate,
    /// A malformed value.
    Invalid,
    /// A value outside an enumeration.
    NotSupported,
    /// A well-formed value that is not permitted here.
    Forbidden,
    /// A value that is too long; the value is not repeated in the message.
    TooLong,
    /// A value that is too short.
    TooShort,
    /// A list or map with too many entries.
    TooMany,
    /// A list or map with too few entries.
    TooFew,
    /// Not the user's fault.
    Internal,
    /// A value of the wrong JSON type.
    TypeInvalid,
}

impl ErrorType {
    /// The `reason` of the status cause, e.g. `FieldValueInvalid`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "FieldValueNotFound",
            Self::Required => "FieldValueRequired",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooShort => "FieldValueTooShort",
            Self::TooMany => "FieldValueTooMany",
            Self::TooFew => "FieldValueTooFew",
            Self::Internal => "InternalError",
            Self::TypeInvalid => "FieldValueTypeInvalid",
        }
    }

    /// The words that open the message, e.g. `Invalid value`.
    pub fn title(self) -> &'static str {
        match self {
            Self::NotFound => "Not found",
            Self::Required => "Required value",
            Self::Duplicate => "Duplicate value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooShort => "Too short",
            Self::TooMany => "Too many",
            Self::TooFew => "Too few",
            Self::Internal => "Internal error",
        }
    }

    fn shows_value(self) -> bool {
        !matches!(self, Self::Required | Self::Forbidden | Self::TooLong | Self::TooShort | Self::Internal)
    }
}

/// One problem with one field. Displays as `field: Title: value: detail`.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}: {}", self.field, self.body())]
pub struct Error {
    /// What is wrong.
    pub ty: ErrorType,
    /// Printed path of the field.
    pub field: String,
    /// The offending value; ignored for types with a message that does not show it.
    pub bad_value: Value,
    /// Explanation; may be empty.
    pub detail: String,
    /// Leave the value out of the message although the type shows one.
    pub omit_value: bool,
}

/// Problems in the order they were found.
pub type ErrorList = Vec<Error>;

fn make(ty: ErrorType, path: &Path, bad_value: Value, detail: impl Into<String>) -> Error {
    Error { ty, field: path.to_string(), bad_value, detail: detail.into(), omit_value: false }
}

/// `n` and a noun in the right number.
fn count(n: usize, one: &str) -> String {
    format!("{n} {one}{}", if n == 1 { "" } else { "s" })
}

impl Error {
    /// A missing value; `detail` may be empty.
    pub fn required(path: &Path, detail: impl Into<String>) -> Self {
        make(ErrorType::Required, path, Value::Null, detail)
    }

    /// A malformed value.
    pub fn invalid(path: &Path, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        make(ErrorType::Invalid, path, value.into(), detail)
    }

    /// A value of the wrong type.
    pub fn type_invalid(path: &Path, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        make(ErrorType::TypeInvalid, path, value.into(), detail)
    }

    /// A value that is not one of `valid`; the message lists them in the given order.
    pub fn not_supported(path: &Path, value: impl Into<Value>, valid: &[&str]) -> Self {
        let detail = if valid.is_empty() {
            String::new()
        } else {
            let quoted: Vec<String> = valid.iter().map(|v| text::quote(v)).collect();
            format!("supported values: {}", quoted.join(", "))
        };
        make(ErrorType::NotSupported, path, value.into(), detail)
    }

    /// A second occurrence of a value that must be unique.
    pub fn duplicate(path: &Path, value: impl Into<Value>) -> Self {
        make(ErrorType::Duplicate, path, value.into(), "")
    }

    /// A value that is not permitted here.
    pub fn forbidden(path: &Path, detail: impl Into<String>) -> Self {
        make(ErrorType::Forbidden, path, Value::Null, detail)
    }

    /// More than `max` bytes. The value is accepted for symmetry and not shown.
    pub fn too_long(path: &Path, _value: impl Into<Value>, max: usize) -> Self {
        let detail = format!("may not be more than {}", count(max, "byte"));
        make(ErrorType::TooLong, path, Value::Null, detail)
    }

    /// More than `max` characters (as JSON Schema's `maxLength` counts).
    pub fn too_long_characters(path: &Path, max: usize) -> Self {
        let detail = format!("may not be more than {}", count(max, "character"));
        make(ErrorType::TooLong, path, Value::Null, detail)
    }

    /// Fewer than `min` characters.
    pub fn too_short(path: &Path, value: impl Into<Value>, min: usize) -> Self {
        make(ErrorType::TooShort, path, value.into(), format!("must be at least {}", count(min, "character")))
    }

    /// `actual` entries where at most `max` are allowed.
    pub fn too_many(path: &Path, actual: usize, max: usize) -> Self {
        make(ErrorType::TooMany, path, actual.into(), format!("must have at most {}", count(max, "item")))
    }

    /// `actual` entries where at least `min` are needed.
    pub fn too_few(path: &Path, actual: usize, min: usize) -> Self {
        make(ErrorType::TooFew, path, actual.into(), format!("must have at least {}", count(min, "item")))
    }

    /// A reference to something that does not exist.
    pub fn not_found(path: &Path, value: impl Into<Value>) -> Self {
        make(ErrorType::NotFound, path, value.into(), "")
    }

    /// Not the user's fault.
    pub fn internal(path: &Path, err: impl fmt::Display) -> Self {
        make(ErrorType::Internal, path, Value::Null, err.to_string())
    }

    /// The same error without its value in the message.
    #[must_use]
    pub fn without_value(mut self) -> Self {
        self.omit_value = true;
        self
    }

    /// The same error, this text in place of its value: what upstream holds in a separate struct with fields that have other
    /// names and another order than JSON's.
    #[must_use]
    pub fn showing(mut self, text: impl fmt::Display) -> Self {
        self.omit_value = true;
        self.detail =
            if self.detail.is_empty() { text.to_string() } else { format!("{text}: {}", self.detail) };
        self
    }

    /// The message without the field: `Invalid value: "x": detail`.
    pub fn body(&self) -> String {
        let mut out = self.ty.title().to_owned();
        if self.ty.shows_value() && !self.omit_value {
            out.push_str(": ");
            out.push_str(&match &self.bad_value {
                Value::String(s) => text::quote(s),
                Value::Number(n) if n.is_f64() => n.as_f64().map_or_else(|| n.to_string(), text::float),
                other => text::json(other),
            });
        }
        if !self.detail.is_empty() {
            out.push_str(": ");
            out.push_str(&self.detail);
        }
        out
    }
}

/// Distinct messages in order; one stands alone, several as `[a, b]`, none as the empty string.
pub fn aggregate(errors: &[Error]) -> String {
    let mut seen: Vec<String> = Vec::with_capacity(errors.len());
    let mut known = std::collections::HashSet::with_capacity(errors.len());
    for message in errors.iter().map(ToString::to_string) {
        if known.insert(message.clone()) {
            seen.push(message);
        }
    }
    if seen.len() > 1 { format!("[{}]", seen.join(", ")) } else { seen.pop().unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn paths_print_as_upstream() {
        assert_eq!(Path::new("spec").child("x").index(0).key("k").to_string(), "spec.x[0][k]");
        assert_eq!(Path::root().to_string(), "<nil>");
        assert_eq!(Path::root().child("spec").to_string(), "spec");
        assert_eq!(Path::root().child("values").index(1).child("a").to_string(), "values[1].a");
    }

    #[test]
    fn paths_that_are_left_out_stay_so_and_others_are_whole() {
        let before = Path::new("spec");
        let left_out = without_paths(|| {
            assert_eq!(before.child("x").to_string(), "spec.x");
            [Path::new("spec").child("x").index(9).key("k"), Path::root().child("spec")]
        });
        assert!(left_out.iter().all(|path| path.child("more").is_root()));
        assert_eq!(Path::new("spec").child("x").to_string(), "spec.x");
        let panicked = std::panic::catch_unwind(|| without_paths(|| -> () { panic!("in a validation") }));
        assert!(panicked.is_err());
        assert_eq!(Path::new("spec").to_string(), "spec");
    }

    #[test]
    fn prints_upstreams_messages() {
        let p = Path::new("spec").child("x");
        let all = [
            Error::required(&p, ""),
            Error::required(&p, "why"),
            Error::invalid(&p, "a\"b", "bad"),
            Error::invalid(&p, 7, "bad"),
            Error::invalid(&p, 1e21, ""),
            Error::invalid(&p, json!({"a": "<"}), "bad"),
            Error::invalid(&p, Value::Null, "bad"),
            Error::not_supported(&p, "z", &["a", "b"]),
            Error::duplicate(&p, "z"),
            Error::forbidden(&p, "no"),
            Error::too_long(&p, "", 1),
            Error::too_long_characters(&p, 3),
            Error::too_short(&p, "", 1),
            Error::too_many(&p, 3, 2),
            Error::too_many(&p, 3, 2).without_value(),
            Error::too_few(&p, 0, 1),
            Error::not_found(&p, "z"),
            Error::type_invalid(&p, true, "must be string"),
            Error::internal(&p, "boom"),
        ];
        let text: Vec<String> = all.iter().map(ToString::to_string).collect();
        expect![[r#"
            spec.x: Required value
            spec.x: Required value: why
            spec.x: Invalid value: "a\"b": bad
            spec.x: Invalid value: 7: bad
            spec.x: Invalid value: 1e+21
            spec.x: Invalid value: {"a":"\u003c"}: bad
            spec.x: Invalid value: null: bad
            spec.x: Unsupported value: "z": supported values: "a", "b"
            spec.x: Duplicate value: "z"
            spec.x: Forbidden: no
            spec.x: Too long: may not be more than 1 byte
            spec.x: Too long: may not be more than 3 characters
            spec.x: Too short: must be at least 1 character
            spec.x: Too many: 3: must have at most 2 items
            spec.x: Too many: must have at most 2 items
            spec.x: Too few: 0: must have at least 1 item
            spec.x: Not found: "z"
            spec.x: Invalid value: true: must be string
            spec.x: Internal error: boom"#]]
        .assert_eq(&text.join("\n"));
    }

    #[test]
    fn aggregates_distinct_messages() {
        let e = |d: &str| Error::forbidden(&Path::new("a"), d);
        assert_eq!(aggregate(&[]), "");
        assert_eq!(aggregate(&[e("x"), e("x")]), "a: Forbidden: x");
        assert_eq!(aggregate(&[e("x"), e("y"), e("x")]), "[a: Forbidden: x, a: Forbidden: y]");
    }
}
