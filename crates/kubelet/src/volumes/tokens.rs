//! Tokens of service accounts in projected volumes. Upstream's `token.Manager`: a token is replaced when 80 % of its life are
//! over, or after a day.

use crate::pods::sources::{Sources, Token, TokenRequest};
use jiff::Timestamp;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Seconds.
const LONGEST: i64 = 24 * 3600;
/// Tokens that are kept.
const MOST: usize = 10_000;

/// The tokens of a node's pods.
#[derive(Default)]
pub(super) struct Tokens(Mutex<HashMap<TokenRequest, Token>>);

fn due(token: &Token, now: Timestamp) -> bool {
    let life = token.expires.duration_since(token.issued).as_secs();
    let age = now.duration_since(token.issued).as_secs();
    age >= life * 4 / 5 || age >= LONGEST
}

impl Tokens {
    /// The present token.
    pub(super) async fn get(
        &self,
        sources: &dyn Sources,
        request: &TokenRequest,
        now: Timestamp,
    ) -> Result<String, String> {
        self.whole(sources, request, now).await.map(|token| token.token)
    }

    /// The present token, and how long it is valid. One that cannot be replaced is used until it ends.
    pub(super) async fn whole(
        &self,
        sources: &dyn Sources,
        request: &TokenRequest,
        now: Timestamp,
    ) -> Result<Token, String> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(request).cloned();
        if let Some(token) = kept.as_ref().filter(|t| !due(t, now)) {
            return Ok(token.clone());
        }
        match sources.token(request).await {
            Ok(token) => {
                let mut tokens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                if tokens.len() >= MOST {
                    tokens.retain(|_, t| t.expires > now);
                }
                tokens.insert(request.clone(), token.clone());
                Ok(token)
            }
            Err(error) => match kept.filter(|t| t.expires > now) {
                Some(token) => {
                    tracing::warn!(error, "a service account's token could not be replaced");
                    Ok(token)
                }
                None => Err(format!("failed to fetch token: {error}")),
            },
        }
    }

    /// Forgets the tokens of a pod.
    pub(super) fn forget(&self, pod_uid: &str) {
        let mut tokens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.retain(|request, _| request.pod_uid != pod_uid);
    }
}
