//! Which requests the control takes: those with the token of this process that were meant for it.
//!
//! Invariants: the token has 256 random bits and is compared in a time that does not depend on it; requests to another host (DNS rebinding)
//! and from web pages (an `Origin`) are refused with a token, too.

use super::routes::RequestRejection;
use http::{HeaderMap, StatusCode, header};
use kaji_meta::random::Random;
use std::fmt::Write as _;

/// See the module.
pub struct Token {
    text: String,
    hosts: [String; 2],
}

impl Token {
    /// A new one, for the control at this port.
    #[must_use]
    pub fn new(random: &dyn Random, port: u16) -> Token {
        let mut text = String::new();
        for _ in 0..4 {
            // Writing to a string does not fail.
            let _ = write!(text, "{:016x}", random.u64());
        }
        Token { text, hosts: ["127.0.0.1", "localhost"].map(|host| format!("{host}:{port}")) }
    }

    /// For the announcement.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Why a request is refused, if it is.
    pub(super) fn refuses(&self, headers: &HeaderMap) -> Option<RequestRejection> {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let host = text(header::HOST).unwrap_or_default();
        if headers.contains_key(header::ORIGIN) || !self.hosts.iter().any(|ours| ours == host) {
            return Some(RequestRejection::new(
                StatusCode::FORBIDDEN,
                "the control is for tests on this machine",
            ));
        }
        let given = text(header::AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
        let fits = given.is_some_and(|given| equal(given.as_bytes(), self.text.as_bytes()));
        (!fits)
            .then(|| RequestRejection::new(StatusCode::UNAUTHORIZED, "the token of this control is needed"))
    }
}

/// Compares all bytes, whichever differ.
fn equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "test code: a panic is a failure")]
mod tests {
    use super::*;
    use kaji_meta::random::SeededRandom;

    #[test]
    fn takes_requests_with_its_token_that_are_meant_for_it() {
        let token = Token::new(&SeededRandom::new(1), 4000);
        assert_eq!(token.text().len(), 64);
        assert_ne!(token.text(), Token::new(&SeededRandom::new(2), 4000).text());
        let bearer = format!("Bearer {}", token.text());
        let cut = &bearer[..bearer.len() - 1];
        let code = |headers: &[(header::HeaderName, &str)]| {
            let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap()));
            token.refuses(&headers.collect()).map(|refusal| refusal.code.as_u16())
        };
        let (host, auth) = (header::HOST, header::AUTHORIZATION);
        assert_eq!(code(&[(host.clone(), "127.0.0.1:4000"), (auth.clone(), &bearer)]), None);
        assert_eq!(code(&[(host.clone(), "localhost:4000"), (auth.clone(), &bearer)]), None);
        assert_eq!(code(&[(host.clone(), "127.0.0.1:4000")]), Some(401));
        assert_eq!(code(&[(host.clone(), "127.0.0.1:4000"), (auth.clone(), cut)]), Some(401));
        assert_eq!(code(&[(host.clone(), "127.0.0.1:4000"), (auth.clone(), "Bearer ")]), Some(401));
        assert_eq!(code(&[(host.clone(), "rebound.example.com:4000"), (auth.clone(), &bearer)]), Some(403));
        assert_eq!(code(&[(auth.clone(), &bearer)]), Some(403));
        let page = [(host, "127.0.0.1:4000"), (auth, &bearer), (header::ORIGIN, "http://127.0.0.1:4000")];
        assert_eq!(code(&page), Some(403));
    }
}
