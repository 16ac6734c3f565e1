//! One-time codes, and the tokens that they are exchanged for.
//!
//! Invariants: both have 128 random bits and are kept as digests, so that comparing them tells nothing of them by the time it takes;
//! there are `MOST` of each at most, the oldest giving way.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderMap, header};
use kaji_meta::random::Random;
use ring::digest::{SHA256, digest};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// How long a code is good.
const CODE_LIFE: Duration = Duration::from_secs(300);
/// Codes and tokens.
const MOST: usize = 32;
/// The subprotocol by which a WebSocket carries a token, as the API server's does.
pub const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

type Digest = [u8; 32];

/// The codes and tokens of one process.
pub struct Sessions {
    random: Arc<dyn Random>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    codes: VecDeque<(Digest, Instant)>,
    tokens: VecDeque<Digest>,
}

impl Sessions {
    /// Without any.
    pub fn new(random: Arc<dyn Random>) -> Self {
        Sessions { random, kept: Mutex::default() }
    }

    /// A new code.
    pub fn code(&self) -> String {
        let code = super::nonce(&*self.random);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.codes.push_back((of(code.as_bytes()), Instant::now() + CODE_LIFE));
        if kept.codes.len() > MOST {
            kept.codes.pop_front();
        }
        code
    }

    /// A token for a code, which is used up.
    pub fn exchange(&self, code: &[u8]) -> Option<String> {
        let (now, given) = (Instant::now(), of(code));
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.codes.retain(|(_, until)| *until > now);
        let at = kept.codes.iter().position(|(digest, _)| *digest == given)?;
        kept.codes.remove(at);
        let token = super::nonce(&*self.random);
        kept.tokens.push_back(of(token.as_bytes()));
        if kept.tokens.len() > MOST {
            kept.tokens.pop_front();
        }
        Some(token)
    }

    /// Whether a request has a token.
    pub fn admits(&self, headers: &HeaderMap) -> bool {
        let Some(token) = bearer(headers).or_else(|| subprotocol(headers)) else { return false };
        let given = of(token.as_bytes());
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).tokens.contains(&given)
    }
}

fn of(secret: &[u8]) -> Digest {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest(&SHA256, secret).as_ref());
    bytes
}

fn bearer(headers: &HeaderMap) -> Option<String> {
    headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ").map(str::to_owned)
}

fn subprotocol(headers: &HeaderMap) -> Option<String> {
    let offered = headers.get(header::SEC_WEBSOCKET_PROTOCOL)?.to_str().ok()?;
    let token = offered.split(',').find_map(|protocol| protocol.trim().strip_prefix(TOKEN_PROTOCOL))?;
    String::from_utf8(URL_SAFE_NO_PAD.decode(token).ok()?).ok()
}
