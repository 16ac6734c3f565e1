//! The user that a request comes from: its headers and its connection's certificate, tried in upstream's order.
//!
//! Invariant: only a request without any credential, or with credentials that no authenticator claims, may be
//! anonymous.

use super::{AuthenticationError, Identity, RequestHeader, TokenChain, Verdict, add_authenticated};
use crate::names::{ANONYMOUS, UNAUTHENTICATED};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderMap, HeaderValue, header};
use kaji_resource::UserInfo;
use std::sync::Arc;

/// What precedes a token among the subprotocols of a WebSocket.
const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";
const SPACES: &str =
    "the provided Authorization header contains extra space before the bearer token, and is ignored";

/// What a connection's client certificate says, once verified against each authority.
#[derive(Clone, Debug, Default)]
pub struct Certificates {
    /// The user, for the authority of clients. `None` without a certificate.
    pub client: Option<Result<Arc<UserInfo>, String>>,
    /// The common name, for the authority of front proxies. `None` without a certificate or such an authority.
    pub proxy: Option<Result<String, String>>,
}

/// Which requests may be anonymous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Anonymous {
    /// None.
    Nowhere,
    /// All.
    Everywhere,
    /// Requests for one of these paths.
    At(Vec<String>),
}

/// The whole chain.
#[derive(Clone)]
pub struct Chain {
    /// The rule for front proxies.
    pub proxy: Option<RequestHeader>,
    /// Bearer tokens.
    pub tokens: Arc<TokenChain>,
    /// Requests without credentials.
    pub anonymous: Anonymous,
}

impl Chain {
    /// The user that sent a request, or upstream's reason to refuse it (for the log; the client does not get it).
    pub async fn authenticate(
        &self,
        certificates: &Certificates,
        headers: &HeaderMap,
        path: &str,
    ) -> Result<Identity, AuthenticationError> {
        let mut refusals = vec![];
        let mut warnings = vec![];
        let mut settle = |verdict: Verdict| match verdict {
            Ok(found) => found,
            Err(refusal) => {
                refusals.push(refusal);
                None
            }
        };
        let mut found = settle(self.by_proxy(certificates, headers));
        if found.is_none() {
            found = settle(by_certificate(certificates));
        }
        if found.is_none()
            && let Some(token) = bearer(headers, &mut warnings)
        {
            found = settle(self.tokens.identify(token, &[]).await.map(Some));
        }
        if found.is_none() {
            found = match protocol_token(headers) {
                Ok(Some(token)) => settle(self.tokens.identify(&token, &[]).await.map(Some)),
                Ok(None) => None,
                Err(refusal) => settle(Err(refusal)),
            };
        }
        if let Some(mut identity) = found {
            add_authenticated(&mut identity.user);
            identity.warnings.extend(warnings);
            return Ok(identity);
        }
        if let Some(refusal) = AuthenticationError::all(refusals) {
            return Err(refusal);
        }
        let open = match &self.anonymous {
            Anonymous::Nowhere => false,
            Anonymous::Everywhere => true,
            Anonymous::At(paths) => paths.iter().any(|p| p == path),
        };
        if open {
            Ok(Identity { user: anonymous(), warnings, ..Identity::default() })
        } else {
            Err(AuthenticationError::no_credentials())
        }
    }

    fn by_proxy(&self, certificates: &Certificates, headers: &HeaderMap) -> Verdict {
        match (&self.proxy, &certificates.proxy) {
            (Some(rule), Some(Ok(name))) => rule.authenticate(name, headers),
            (Some(_), Some(Err(why))) => Err(AuthenticationError(why.clone())),
            _ => Ok(None),
        }
    }

    /// Removes every credential from a request before it is handled or forwarded.
    pub fn strip(&self, headers: &mut HeaderMap) {
        headers.remove(header::AUTHORIZATION);
        RequestHeader::default().strip(headers);
        if let Some(rule) = &self.proxy {
            rule.strip(headers);
        }
        let others: Vec<&str> = protocols(headers).filter(|p| !p.starts_with(TOKEN_PROTOCOL)).collect();
        if protocols(headers).any(|p| p.starts_with(TOKEN_PROTOCOL))
            && let Ok(value) = HeaderValue::from_str(&others.join(","))
        {
            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, value);
        }
    }
}

/// The user of requests without any credentials.
pub fn anonymous() -> UserInfo {
    UserInfo { name: ANONYMOUS.into(), groups: vec![UNAUTHENTICATED.into()], ..UserInfo::default() }
}

fn by_certificate(certificates: &Certificates) -> Verdict {
    match &certificates.client {
        None => Ok(None),
        Some(Err(why)) => Err(AuthenticationError(why.clone())),
        Some(Ok(user)) => Ok(Some(Identity { user: UserInfo::clone(user), ..Identity::default() })),
    }
}

/// The token of an `Authorization` header of the bearer kind.
fn bearer<'a>(headers: &'a HeaderMap, warnings: &mut Vec<String>) -> Option<&'a str> {
    let value = std::str::from_utf8(headers.get(header::AUTHORIZATION)?.as_bytes()).ok()?.trim();
    let (scheme, rest) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let (token, more) = rest.split_once(' ').map_or((rest, false), |(token, _)| (token, true));
    if token.is_empty() {
        if more {
            warnings.push(SPACES.to_owned());
        }
        return None;
    }
    Some(token)
}

fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    values.filter_map(|v| std::str::from_utf8(v.as_bytes()).ok()).flat_map(|v| v.split(',')).map(str::trim)
}

/// The token that a browser puts among the subprotocols of a WebSocket, as it can set no header.
fn protocol_token(headers: &HeaderMap) -> Result<Option<String>, AuthenticationError> {
    let has = |name: header::HeaderName, wanted: &str| {
        let value = headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default();
        value.split(',').any(|part| part.trim().eq_ignore_ascii_case(wanted))
    };
    if !has(header::CONNECTION, "upgrade") || !has(header::UPGRADE, "websocket") {
        return Ok(None);
    }
    let mut token: Option<String> = None;
    let mut others = 0;
    for protocol in protocols(headers) {
        let Some(encoded) = protocol.strip_prefix(TOKEN_PROTOCOL) else {
            others += 1;
            continue;
        };
        if token.is_some() {
            return Err(AuthenticationError::new("multiple base64.bearer.authorization tokens specified"));
        }
        let bytes = URL_SAFE_NO_PAD
            .decode(encoded)
            .map_err(|_| AuthenticationError::new("invalid base64.bearer.authorization token encoding"))?;
        let text = String::from_utf8(bytes)
            .map_err(|_| AuthenticationError::new("invalid base64.bearer.authorization token"))?;
        token = Some(text);
    }
    let token = token.filter(|t| !t.is_empty());
    // One that is no token must be left to be answered with.
    if token.is_some() && others == 0 {
        return Err(AuthenticationError::new("missing additional subprotocol"));
    }
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authn::{
        TokenAuthenticator,
        testing::{now_or_never, user},
    };
    use kaji_resource::BoxFuture;
    use proptest::prelude::*;

    /// Knows `good` as alice.
    struct One;

    impl TokenAuthenticator for One {
        fn authenticate<'a>(&'a self, token: &'a str, _: &'a [String]) -> BoxFuture<'a, Verdict> {
            let found =
                (token == "good").then(|| Identity { user: user("alice", &[]), ..Identity::default() });
            Box::pin(std::future::ready(Ok(found)))
        }
    }

    fn chain(anonymous: Anonymous) -> Chain {
        let mut tokens = TokenChain::new(vec!["api".into()]);
        tokens.push(Arc::new(One));
        Chain { proxy: Some(RequestHeader::default()), tokens: Arc::new(tokens), anonymous }
    }

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(header::HeaderName::try_from(*name).unwrap(), HeaderValue::from_str(value).unwrap());
        }
        map
    }

    fn ask(certificates: &Certificates, pairs: &[(&str, &str)]) -> String {
        let chain = chain(Anonymous::At(vec!["/livez".into()]));
        match now_or_never(chain.authenticate(certificates, &headers(pairs), "/livez")) {
            Ok(identity) => {
                format!("{} {:?} {}", identity.user.name, identity.user.groups, identity.warnings.len())
            }
            Err(refusal) => format!("refused: {refusal}"),
        }
    }

    const ANONYMOUS_USER: &str = r#"system:anonymous ["system:unauthenticated"] 0"#;
    const ALICE: &str = r#"alice ["system:authenticated"] 0"#;

    #[test]
    fn accepts_bearer_tokens_in_any_case() {
        let no_certificates = Certificates::default();
        let ask = |value: &str| ask(&no_certificates, &[("authorization", value)]);
        for good in ["Bearer good", "bearer good", " BEARER good x"] {
            assert_eq!(ask(good), ALICE, "{good}");
        }
        for ignored in ["Basic Z29vZA==", "Bearer", "good"] {
            assert_eq!(ask(ignored), ANONYMOUS_USER, "{ignored}");
        }
        assert_eq!(ask("Bearer  good"), ANONYMOUS_USER.replace(" 0", " 1"));
        assert_eq!(ask("Bearer bad"), "refused: invalid bearer token");
    }

    #[test]
    fn certificates_come_first_and_invalid_ones_are_refused() {
        let bob = Certificates { client: Some(Ok(Arc::new(user("bob", &["a"])))), ..Certificates::default() };
        let unknown =
            Certificates { client: Some(Err("unknown authority".into())), ..Certificates::default() };
        let good = [("authorization", "Bearer good")];
        assert_eq!(ask(&bob, &good), r#"bob ["a", "system:authenticated"] 0"#);
        assert_eq!(ask(&bob, &[("authorization", "Bearer bad")]), r#"bob ["a", "system:authenticated"] 0"#);
        assert_eq!(ask(&unknown, &good), ALICE);
        assert_eq!(ask(&unknown, &[]), "refused: unknown authority");
    }

    #[test]
    fn only_front_proxies_may_name_users() {
        let named = [("x-remote-user", "carol"), ("x-remote-group", "system:masters")];
        let proxy = |name: &str| Certificates {
            client: Some(Err("unknown authority".into())),
            proxy: Some(Ok(name.into())),
        };
        assert_eq!(
            ask(&proxy("front-proxy-client"), &named),
            r#"carol ["system:masters", "system:authenticated"] 0"#
        );
        assert_eq!(
            ask(&proxy("other"), &named),
            "refused: [x509: subject with cn=other is not in the allowed list, unknown authority]"
        );
        assert_eq!(ask(&proxy("front-proxy-client"), &[]), "refused: unknown authority");
        assert_eq!(ask(&Certificates::default(), &named), ANONYMOUS_USER);
    }

    #[test]
    fn accepts_tokens_in_websocket_protocols() {
        let ask = |protocols: &str| {
            let upgrade = [("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")];
            ask(&Certificates::default(), &[&upgrade[..], &[("sec-websocket-protocol", protocols)]].concat())
        };
        let (good, bad) = (format!("{TOKEN_PROTOCOL}Z29vZA"), format!("{TOKEN_PROTOCOL}YmFk"));
        assert_eq!(ask(&format!("v5.channel.k8s.io, {good}")), ALICE);
        assert_eq!(ask("v5.channel.k8s.io"), ANONYMOUS_USER);
        assert_eq!(ask(&format!("{bad}, v5")), "refused: invalid bearer token");
        assert_eq!(ask(&good), "refused: missing additional subprotocol");
        assert_eq!(
            ask(&format!("{good},{good},v5")),
            "refused: multiple base64.bearer.authorization tokens specified"
        );
        assert_eq!(
            ask(&format!("{TOKEN_PROTOCOL}=,v5")),
            "refused: invalid base64.bearer.authorization token encoding"
        );
        let mut map = headers(&[
            ("authorization", "Bearer x"),
            ("x-remote-user", "u"),
            ("sec-websocket-protocol", &format!("v5, {good}")),
            ("sec-websocket-protocol", "v4"),
        ]);
        chain(Anonymous::Nowhere).strip(&mut map);
        assert_eq!(map, headers(&[("sec-websocket-protocol", "v5,v4")]));
    }

    #[test]
    fn allows_anonymous_on_configured_paths() {
        let ask = |anonymous: Anonymous, path: &str| {
            let chain = chain(anonymous);
            now_or_never(chain.authenticate(&Certificates::default(), &HeaderMap::new(), path)).is_ok()
        };
        assert!(ask(Anonymous::Everywhere, "/api"));
        assert!(!ask(Anonymous::Nowhere, "/livez"));
        let at = || Anonymous::At(vec!["/livez".into()]);
        assert!(ask(at(), "/livez") && !ask(at(), "/livez/ping") && !ask(at(), "/api"));
    }

    proptest! {
        #[test]
        fn headers_never_panic(value in any::<Vec<u8>>(), protocol in any::<Vec<u8>>()) {
            let mut map = headers(&[("connection", "upgrade"), ("upgrade", "websocket")]);
            for (name, value) in [(header::AUTHORIZATION, value), (header::SEC_WEBSOCKET_PROTOCOL, protocol)] {
                if let Ok(value) = HeaderValue::from_bytes(&value) {
                    map.insert(name, value);
                }
            }
            let chain = chain(Anonymous::Everywhere);
            let _ = now_or_never(chain.authenticate(&Certificates::default(), &map, "/"));
            chain.strip(&mut map);
            prop_assert!(!map.contains_key(header::AUTHORIZATION));
        }
    }
}
