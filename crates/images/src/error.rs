//! Errors of images. The texts are shown in events and in pods' statuses; those of pulls are containerd's.

use kaji_containers::RuntimeError;
use std::io;
use std::path::Path;
use thiserror::Error;

/// Why an operation on images failed.
#[derive(Debug, Error)]
pub enum ImageError {
    /// A reference, a document or an archive is not well-formed, or is refused.
    #[error("{0}")]
    Invalid(String),
    /// No such image, in the store or in the registry.
    #[error("{0}")]
    NotFound(String),
    /// Bytes do not have the digest that they have to have.
    #[error("{0}")]
    Digest(String),
    /// The registry refuses these credentials, or requires some.
    #[error("{0}")]
    Denied(String),
    /// The registry cannot be reached, or answers with an error that may pass.
    #[error("{0}")]
    Unavailable(String),
    /// Another image has the owner's lease.
    #[error("{0}")]
    Leased(String),
    /// A limit on size, number or ratio was reached.
    #[error("{0}")]
    Limit(String),
    /// A system call failed.
    #[error("{context}: {error}")]
    Io {
        /// What was being done.
        context: String,
        /// How it failed.
        error: io::Error,
    },
}

impl ImageError {
    /// The same in a context: `context: text`.
    #[must_use]
    pub fn within(self, context: &str) -> ImageError {
        let text = |text: String| format!("{context}: {text}");
        match self {
            ImageError::Invalid(inner) => ImageError::Invalid(text(inner)),
            ImageError::NotFound(inner) => ImageError::NotFound(text(inner)),
            ImageError::Digest(inner) => ImageError::Digest(text(inner)),
            ImageError::Denied(inner) => ImageError::Denied(text(inner)),
            ImageError::Unavailable(inner) => ImageError::Unavailable(text(inner)),
            ImageError::Leased(inner) => ImageError::Leased(text(inner)),
            ImageError::Limit(inner) => ImageError::Limit(text(inner)),
            ImageError::Io { context, error } => ImageError::Io { context: text(context), error },
        }
    }
}

impl From<ImageError> for RuntimeError {
    fn from(error: ImageError) -> RuntimeError {
        let text = error.to_string();
        match error {
            ImageError::Invalid(_) => RuntimeError::InvalidArgument(text),
            ImageError::NotFound(_) => RuntimeError::NotFound(text),
            ImageError::Digest(_) => RuntimeError::SignatureValidationFailed(text),
            ImageError::Unavailable(_) => RuntimeError::RegistryUnavailable(text),
            ImageError::Leased(_) => RuntimeError::AlreadyExists(text),
            // CRI has no code for refused credentials: containerd answers with `Unknown`.
            ImageError::Denied(_) | ImageError::Limit(_) | ImageError::Io { .. } => {
                RuntimeError::Internal(text)
            }
        }
    }
}

/// Says what was being done when a system call failed.
pub(crate) trait Context<T> {
    /// What was being done.
    fn context(self, what: impl FnOnce() -> String) -> Result<T, ImageError>;

    /// What was being done, to which path.
    fn on(self, what: &str, path: &Path) -> Result<T, ImageError>
    where
        Self: Sized,
    {
        self.context(|| format!("{what} {}", path.display()))
    }
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T, ImageError> {
        self.map_err(|error| ImageError::Io { context: what(), error: error.into() })
    }
}
