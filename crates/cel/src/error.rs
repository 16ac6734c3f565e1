//! Errors of evaluation.

use crate::value::Value;
use std::borrow::Cow;

/// A failed evaluation. Its `Display` form is upstream's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No function takes values of these types; the checker could not know (dyn).
    #[error("no such overload")]
    Overload,
    /// The same, of a function: its name, with the types that it was given.
    #[error("no such overload: {0}")]
    NoOverload(Box<str>),
    /// The budget is used up; nothing may catch this.
    #[error("operation cancelled: actual cost limit exceeded")]
    Cost,
    /// An authorizer has to decide first; nothing may catch this. See [`crate::Authority`].
    #[error("an authorization check has no answer yet")]
    Unanswered,
    /// Anything else: a missing key, an index out of bounds, an overflow.
    #[error("{0}")]
    Eval(Cow<'static, str>),
}

impl Error {
    pub(crate) fn eval(message: impl Into<Cow<'static, str>>) -> Error {
        Error::Eval(message.into())
    }

    /// Ends an evaluation, whatever is around it.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Error::Cost | Error::Unanswered)
    }

    /// No function takes values of these types.
    pub fn is_overload(&self) -> bool {
        matches!(self, Error::Overload | Error::NoOverload(_))
    }

    pub(crate) fn no_overload(function: &str, args: &[Value<'_>]) -> Error {
        // Operators are carried out by their first operand, which may not know them at all.
        match (function, args.first()) {
            ("size", _) => return Error::NoOverload(function.into()),
            (
                "_+_" | "_-_" | "_*_" | "_/_" | "_%_" | "_<_" | "_<=_" | "_>_" | "_>=_",
                Some(Value::Null | Value::Map(_) | Value::Type(_) | Value::Optional(_)),
            ) => return Error::NoOverload(function.into()),
            ("contains" | "startsWith" | "endsWith" | "matches" | "find" | "findAll", _) => {
                return Error::Overload;
            }
            _ if function.starts_with(['_', '-', '!', '@']) => return Error::Overload,
            _ => {}
        }
        let types: Vec<&str> = args.iter().map(|a| a.ty().name()).collect();
        Error::NoOverload(format!("{function}({})", types.join(", ")).into())
    }

    pub(crate) fn no_such_key(key: &str) -> Error {
        Error::Eval(format!("no such key: {key}").into())
    }
}
