//! The functions of expressions, one file a library: their declarations (see [`crate::overloads`]) and what they do.
//!
//! A function is given values that the checker could not rule out, so each one answers "no such overload" to what it does
//! not take. Texts that functions make are bounded by [`MAX_TEXT`], lists by [`MAX_ELEMENTS`]: what is larger could not be
//! paid for.

use crate::{error::Error, value::Value};

pub(crate) mod authz;
pub(crate) mod convert;
pub(crate) mod format;
pub(crate) mod jsonpatch;
pub(crate) mod lists;
pub(crate) mod net;
mod operators;
mod optional;
mod quantity;
pub(crate) mod regex;
pub(crate) mod semver;
mod sets;
mod strings;
pub(crate) mod template;
pub(crate) mod time;
pub(crate) mod urls;

/// The longest text that a function makes, in bytes.
pub(crate) const MAX_TEXT: usize = 16 << 20;
/// The longest list that a function makes.
pub(crate) const MAX_ELEMENTS: usize = 1 << 20;

/// What carries a function out; the target of a member function comes first.
pub(crate) type Native = for<'v, 'a> fn(&'v [Value<'a>]) -> Result<Value<'a>, Error>;

/// What functions answer.
pub(crate) type Called<'a> = Result<Value<'a>, Error>;

/// The declarations of all libraries.
pub(crate) fn declarations() -> impl Iterator<Item = &'static str> {
    [
        operators::DECLARATIONS,
        convert::DECLARATIONS,
        time::DECLARATIONS,
        strings::DECLARATIONS,
        lists::DECLARATIONS,
        sets::DECLARATIONS,
        optional::DECLARATIONS,
        regex::DECLARATIONS,
        urls::DECLARATIONS,
        quantity::DECLARATIONS,
        net::DECLARATIONS,
        format::DECLARATIONS,
        semver::DECLARATIONS,
        authz::DECLARATIONS,
        jsonpatch::DECLARATIONS,
    ]
    .into_iter()
}

/// The function of that name.
pub(crate) fn native(name: &str) -> Option<(&'static str, Native)> {
    let (name, _) = crate::overloads::function(name)?;
    let libraries = [
        operators::native,
        convert::native,
        time::native,
        strings::native,
        lists::native,
        sets::native,
        optional::native,
        regex::native,
        urls::native,
        quantity::native,
        net::native,
        format::native,
        semver::native,
        authz::native,
        jsonpatch::native,
    ];
    libraries.into_iter().find_map(|library| library(name)).map(|native| (name, native))
}

/// The answer to values that a function does not take.
pub(crate) fn no_overload<'a>() -> Called<'a> {
    Err(Error::Overload)
}

#[cfg(test)]
mod tests {
    /// A declared function without an implementation would fail only when it is called.
    #[test]
    fn every_declared_function_exists() {
        // Done by the plan itself.
        const PLANNED: [&str; 13] = [
            "_&&_",
            "_||_",
            "_?_:_",
            "!_",
            "@not_strictly_false",
            "_==_",
            "_!=_",
            "_[_]",
            "_[?_]",
            "_?._",
            "or",
            "orValue",
            "cel.@mapInsert",
        ];
        for line in super::declarations().flat_map(str::lines) {
            let Some(name) = line.split_ascii_whitespace().next() else { continue };
            assert!(PLANNED.contains(&name) || super::native(name).is_some(), "{name}");
            assert_eq!(line.split_ascii_whitespace().count(), 4, "{line}");
        }
    }
}
