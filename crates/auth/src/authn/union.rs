//! Several authenticators of tokens, tried in order.
//!
//! Invariant: a refusal of one does not keep the next from accepting the token; it is returned only when none accepts it.

use super::{AuthenticationError, Identity, TokenAuthenticator, Verdict, add_authenticated, intersection};
use arc_swap::ArcSwap;
use kaji_resource::BoxFuture;
use std::sync::Arc;

/// The authenticators in their order. Source: upstream's `kubeapiserver/authenticator`: local ones before remote ones.
#[derive(Clone, Default)]
pub struct TokenChain {
    authenticators: Vec<Arc<dyn TokenAuthenticator>>,
    /// The API server's own audiences, meant where a question names none.
    audiences: Vec<String>,
}

impl TokenChain {
    /// A chain for a server with these audiences.
    pub fn new(audiences: Vec<String>) -> Self {
        TokenChain { authenticators: vec![], audiences }
    }

    /// Adds one at the end.
    pub fn push(&mut self, authenticator: Arc<dyn TokenAuthenticator>) {
        self.authenticators.push(authenticator);
    }

    /// The user that a token belongs to; `audiences` empty for the server's own.
    pub async fn identify(&self, token: &str, audiences: &[String]) -> Result<Identity, AuthenticationError> {
        let audiences = if audiences.is_empty() { &self.audiences } else { audiences };
        let mut refusals = vec![];
        for authenticator in &self.authenticators {
            match authenticator.authenticate(token, audiences).await {
                Ok(Some(mut identity)) => {
                    add_authenticated(&mut identity.user);
                    return Ok(identity);
                }
                Ok(None) => {}
                Err(refusal) => refusals.push(refusal),
            }
        }
        Err(AuthenticationError::all(refusals)
            .unwrap_or_else(|| AuthenticationError::new("invalid bearer token")))
    }
}

/// Authenticators in the place of one, which others may replace while the server runs.
#[derive(Default)]
pub struct Swappable(ArcSwap<Vec<Arc<dyn TokenAuthenticator>>>);

impl Swappable {
    /// Puts these in the place of those before.
    pub fn set(&self, authenticators: Vec<Arc<dyn TokenAuthenticator>>) {
        self.0.store(Arc::new(authenticators));
    }
}

impl TokenAuthenticator for Swappable {
    fn authenticate<'a>(&'a self, token: &'a str, audiences: &'a [String]) -> BoxFuture<'a, Verdict> {
        let current = self.0.load_full();
        Box::pin(async move {
            for authenticator in current.iter() {
                // Each recognizes its tokens by the issuer: what it refuses is not for any other.
                if let Some(identity) = authenticator.authenticate(token, audiences).await? {
                    return Ok(Some(identity));
                }
            }
            Ok(None)
        })
    }
}

/// Tokens that know no audiences are good for the server's own. Source: upstream's `WrapAudienceAgnosticToken`.
pub struct Agnostic<T> {
    inner: T,
    audiences: Vec<String>,
}

impl<T> Agnostic<T> {
    /// Wraps one for a server with these audiences.
    pub fn new(inner: T, audiences: Vec<String>) -> Self {
        Agnostic { inner, audiences }
    }
}

impl<T: TokenAuthenticator + ?Sized> TokenAuthenticator for Arc<T> {
    fn authenticate<'a>(&'a self, token: &'a str, audiences: &'a [String]) -> BoxFuture<'a, Verdict> {
        T::authenticate(self, token, audiences)
    }
}

impl<T: TokenAuthenticator> TokenAuthenticator for Agnostic<T> {
    fn authenticate<'a>(&'a self, token: &'a str, audiences: &'a [String]) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let good_for = intersection(&self.audiences, audiences);
            if good_for.is_empty() {
                return Ok(None);
            }
            let found = self.inner.authenticate(token, audiences).await?;
            Ok(found.map(|identity| Identity { audiences: good_for, ..identity }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authn::testing::{now_or_never, user};

    struct Says(Verdict);

    impl TokenAuthenticator for Says {
        fn authenticate<'a>(&'a self, _: &'a str, _: &'a [String]) -> BoxFuture<'a, Verdict> {
            Box::pin(std::future::ready(self.0.clone()))
        }
    }

    fn ask(verdicts: Vec<Verdict>) -> Result<Identity, AuthenticationError> {
        let mut chain = TokenChain::new(vec!["api".into()]);
        verdicts.into_iter().for_each(|v| chain.push(Arc::new(Says(v))));
        now_or_never(chain.identify("t", &[]))
    }

    #[test]
    fn first_authenticator_that_accepts_decides() {
        let alice = || Ok(Some(Identity { user: user("alice", &["devs"]), ..Identity::default() }));
        let found = ask(vec![Ok(None), Err(AuthenticationError::new("bad")), alice()]).unwrap();
        assert_eq!(found.user, user("alice", &["devs", "system:authenticated"]));
        let told = Identity { user: user("bob", &["system:authenticated"]), ..Identity::default() };
        assert_eq!(ask(vec![Ok(Some(told.clone()))]), Ok(told));
    }

    #[test]
    fn unknown_token_returns_last_refusal() {
        let refused = |verdicts| ask(verdicts).unwrap_err().0;
        assert_eq!(refused(vec![]), "invalid bearer token");
        assert_eq!(refused(vec![Ok(None)]), "invalid bearer token");
        let (a, b) = (|| Err(AuthenticationError::new("a")), || Err(AuthenticationError::new("b")));
        assert_eq!(refused(vec![a(), Ok(None), a()]), "a");
        assert_eq!(refused(vec![a(), b()]), "[a, b]");
    }

    #[test]
    fn authenticators_may_be_replaced() {
        let all = Swappable::default();
        let ask = || now_or_never(all.authenticate("t", &[])).map(|i| i.map(|i| i.user.name));
        let says = |verdict| Arc::new(Says(verdict)) as Arc<dyn TokenAuthenticator>;
        let alice = || Ok(Some(Identity { user: user("alice", &[]), ..Identity::default() }));
        assert_eq!(ask(), Ok(None));
        all.set(vec![says(Ok(None)), says(alice())]);
        assert_eq!(ask(), Ok(Some("alice".into())));
        all.set(vec![says(Err(AuthenticationError::new("expired"))), says(alice())]);
        assert_eq!(ask(), Err(AuthenticationError::new("expired")));
    }

    #[test]
    fn tokens_without_audiences_are_for_the_server() {
        let known = Says(Ok(Some(Identity { user: user("alice", &[]), ..Identity::default() })));
        let agnostic = Agnostic::new(known, vec!["api".into(), "extra".into()]);
        let ask = |a: &[&str]| {
            let audiences: Vec<String> = a.iter().map(|s| (*s).into()).collect();
            now_or_never(agnostic.authenticate("t", &audiences)).unwrap().map(|i| i.audiences)
        };
        assert_eq!(ask(&["api", "other"]), Some(vec!["api".to_owned()]));
        assert_eq!(ask(&["other"]), None);
    }
}
