//! Paths of JSON patches. Source: apiserver `cel/library/jsonpatch.go`.

use super::{Native, no_overload};
use crate::value::Value;

/// The function; it is there only where patches are made.
pub(crate) const ESCAPE: &str = "jsonpatch.escapeKey";

pub(super) const DECLARATIONS: &str = "\
jsonpatch.escapeKey string_jsonpatch_escapeKey_string string string
";

pub(super) fn native(name: &str) -> Option<Native> {
    if name != ESCAPE {
        return None;
    }
    Some(|args| match args {
        [Value::String(key)] => Ok(Value::text(key.replace('~', "~0").replace('/', "~1"))),
        _ => no_overload(),
    })
}
