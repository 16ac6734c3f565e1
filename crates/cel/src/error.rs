//! Why an evaluation failed.

use std::borrow::Cow;

/// A failed evaluation. Its `Display` form is upstream's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No function takes values of these types; the checker could not know (dyn).
    #[error("no such overload")]
    Overload,
    /// The budget is used up; nothing may catch this.
    #[error("operation cancelled: actual cost limit exceeded")]
    Cost,
    /// Anything else: a missing key, an index out of bounds, an overflow.
    #[error("{0}")]
    Eval(Cow<'static, str>),
}

impl Error {
    pub(crate) fn eval(message: impl Into<Cow<'static, str>>) -> Error {
        Error::Eval(message.into())
    }

    pub(crate) fn overload() -> Error {
        Error::Overload
    }

    pub(crate) fn no_such_key(key: &str) -> Error {
        Error::Eval(format!("no such key: {key}").into())
    }
}
