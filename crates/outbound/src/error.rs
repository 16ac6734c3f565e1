//! Why a call failed, in the words of Go's HTTP client and of upstream's REST client.

use kaji_meta::Status;
use std::{error::Error, io};

/// Why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// The configuration is unusable.
    #[error("{0}")]
    Config(String),
    /// No response, for a reason other than a timeout.
    #[error("{0}")]
    Transport(String),
    /// There was not enough time.
    #[error("{0}")]
    Timeout(String),
    /// The service does not exist or has no endpoint.
    #[error("{text}")]
    Service {
        /// With the URL that was to be called.
        text: String,
        /// As the resolver says it.
        status: Box<Status>,
    },
    /// An answer that is no success.
    #[error("{}", .0.message)]
    Answer(Box<Status>),
}

/// Go's text for a deadline that has passed.
pub(crate) const DEADLINE: &str = "context deadline exceeded";

/// Before the reason why an answer could not be read to its end.
pub(crate) const UNREAD: &str = "unexpected error when reading response body. Please retry. Original error: ";

impl CallError {
    /// Whether it was for lack of time.
    pub fn is_timeout(&self) -> bool {
        matches!(self, CallError::Timeout(_))
    }

    /// The same about a request: `Post "https://…": …`.
    pub(crate) fn about(self, method: &http::Method, url: &str) -> CallError {
        let head = || {
            let method = method.as_str();
            let (first, rest) = method.split_at(method.len().min(1));
            format!("{first}{} {url:?}", rest.to_ascii_lowercase())
        };
        match self {
            CallError::Transport(text) => CallError::Transport(format!("{}: {text}", head())),
            CallError::Timeout(text) => CallError::Timeout(format!("{}: {text}", head())),
            CallError::Service { text, status } => {
                CallError::Service { text: format!("{}: {text}", head()), status }
            }
            other => other,
        }
    }
}

/// The first cause of a kind.
pub(crate) fn cause<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<T>() {
            return Some(found);
        }
        // An I/O error hides what it was made of from `source`.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match inner {
            Some(inner) => Some(inner as &(dyn Error + 'static)),
            None => error.source(),
        };
    }
    None
}

/// The words for the number of an I/O error.
pub(crate) fn words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".into(),
        io::ErrorKind::ConnectionReset => "connection reset by peer".into(),
        io::ErrorKind::BrokenPipe => "broken pipe".into(),
        io::ErrorKind::HostUnreachable => "no route to host".into(),
        io::ErrorKind::NetworkUnreachable => "network is unreachable".into(),
        io::ErrorKind::TimedOut => "connection timed out".into(),
        io::ErrorKind::AddrNotAvailable => "cannot assign requested address".into(),
        _ => {
            let text = error.to_string();
            text.split(" (os error").next().unwrap_or_default().to_lowercase()
        }
    }
}

/// A connection that broke while it was used.
pub(crate) fn broken(error: &hyper::Error) -> CallError {
    if let Some(said) = cause::<h2::Error>(error)
        && let Some(code) = said.reason()
    {
        let by = if said.is_remote() { "; received from peer" } else { "" };
        return CallError::Transport(match (said.is_go_away(), code) {
            (true, h2::Reason::NO_ERROR) => {
                "http2: Transport received Server's graceful shutdown GOAWAY".into()
            }
            (true, _) => format!("http2: Transport received GOAWAY from server ErrCode:{code:?}"),
            (false, _) => format!("stream error: {code:?}{by}"),
        });
    }
    if error.is_timeout() {
        return CallError::Transport("http2: client connection lost".into());
    }
    if let Some(e) = cause::<io::Error>(error)
        && e.kind() != io::ErrorKind::UnexpectedEof
    {
        // HTTP/2 calls it that when the other side closes a connection.
        let closed = e.kind() == io::ErrorKind::BrokenPipe && e.raw_os_error().is_none();
        return CallError::Transport(match closed {
            true => "unexpected EOF".into(),
            false => format!("read tcp: read: {}", words(e)),
        });
    }
    if error.is_parse() {
        return CallError::Transport(
            "net/http: HTTP/1.x transport connection broken: malformed HTTP response".into(),
        );
    }
    CallError::Transport("EOF".into())
}

/// A body that ended before its end.
pub(crate) fn cut(error: &(dyn Error + 'static)) -> CallError {
    let why = match cause::<io::Error>(error) {
        Some(e) if e.kind() != io::ErrorKind::UnexpectedEof => format!("read tcp: read: {}", words(e)),
        _ => "unexpected EOF".to_owned(),
    };
    CallError::Transport(format!("{UNREAD}{why}"))
}
