//! Users named by headers of an authenticating proxy (the aggregation layer).
//!
//! Invariant: headers count only on a connection with a client certificate that the front-proxy authority signed for a name that is
//! allowed; [`RequestHeader::strip`] removes them from every request that goes on.

use super::{AuthenticationError, Identity, Verdict};
use http::{HeaderMap, HeaderName};
use kaji_resource::UserInfo;
use std::collections::BTreeMap;

/// Which headers, and the proxies that they are accepted from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// Common names of proxies; empty for every certificate of the authority.
    pub allowed: Vec<String>,
    /// Headers that may hold the user's name; the first that does counts.
    pub user: Vec<String>,
    /// Likewise for the uid.
    pub uid: Vec<String>,
    /// Headers that hold groups.
    pub groups: Vec<String>,
    /// Prefixes of headers that hold further attributes.
    pub extra: Vec<String>,
}

/// How an API server authenticates clients by certificates, as it publishes it to extension API servers and kubelets.
/// Source: upstream's `clusterauthenticationtrust.ClusterAuthenticationInfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterAuthenticationInfo {
    /// Certificate authorities of clients, PEM.
    pub client_ca: String,
    /// Certificate authorities of front proxies, PEM.
    pub request_header_ca: String,
    /// The headers in which front proxies name users.
    pub request_header: RequestHeader,
}

impl Default for RequestHeader {
    /// What kubeadm configures.
    fn default() -> Self {
        let one = |s: &str| vec![s.to_owned()];
        RequestHeader {
            allowed: one("front-proxy-client"),
            user: one("X-Remote-User"),
            uid: one("X-Remote-Uid"),
            groups: one("X-Remote-Group"),
            extra: one("X-Remote-Extra-"),
        }
    }
}

impl RequestHeader {
    /// The user that the headers name. `proxy` is the common name of the verified certificate.
    pub fn authenticate(&self, proxy: &str, headers: &HeaderMap) -> Verdict {
        if !self.allowed.is_empty() && !self.allowed.iter().any(|a| a == proxy) {
            return Err(AuthenticationError::new(format!(
                "x509: subject with cn={proxy} is not in the allowed list"
            )));
        }
        let first = |names: &[String]| {
            names.iter().filter_map(|n| text(headers.get(n.as_str())?)).find(|v| !v.is_empty())
        };
        let Some(name) = first(&self.user) else { return Ok(None) };
        let all = |n: &String| headers.get_all(n.as_str()).iter().filter_map(text).filter(|v| !v.is_empty());
        let mut extra = BTreeMap::<String, Vec<String>>::new();
        for prefix in &self.extra {
            for (key, value) in headers {
                let (Some(key), Some(value)) = (without(key, prefix), text(value)) else { continue };
                extra.entry(unescape_key(key)).or_default().push(value.to_owned());
            }
        }
        let user = UserInfo {
            name: name.to_owned(),
            uid: first(&self.uid).unwrap_or_default().to_owned(),
            groups: self.groups.iter().flat_map(all).map(str::to_owned).collect(),
            extra,
        };
        Ok(Some(Identity { user, ..Identity::default() }))
    }

    /// Removes the headers, also where `_` stands for `-`: many servers cannot tell them apart.
    pub fn strip(&self, headers: &mut HeaderMap) {
        let ours = |name: &&HeaderName| {
            let name = name.as_str().as_bytes();
            let whole = |n: &String| is_spelled(name, n);
            let begins = |p: &String| name.get(..p.len()).is_some_and(|head| is_spelled(head, p));
            [&self.user, &self.uid, &self.groups].into_iter().flatten().any(whole)
                || self.extra.iter().any(begins)
        };
        let said: Vec<HeaderName> = headers.keys().filter(ours).cloned().collect();
        said.iter().for_each(|name| drop(headers.remove(name)));
    }
}

/// Whether it is that name, in any case, and with `_` in place of `-`.
fn is_spelled(name: &[u8], wanted: &str) -> bool {
    let plain = |b: u8| if b == b'_' { b'-' } else { b.to_ascii_lowercase() };
    name.len() == wanted.len() && name.iter().zip(wanted.bytes()).all(|(a, b)| plain(*a) == plain(b))
}

fn text(value: &http::HeaderValue) -> Option<&str> {
    std::str::from_utf8(value.as_bytes()).ok()
}

/// What follows a prefix; header names are in lower case.
fn without<'a>(name: &'a HeaderName, prefix: &str) -> Option<&'a str> {
    let (head, rest) = name.as_str().split_at_checked(prefix.len())?;
    head.eq_ignore_ascii_case(prefix).then_some(rest)
}

/// A key of extra attributes as headers carry it: percent escapes decoded, kept as it is when one is broken.
pub fn unescape_key(key: &str) -> String {
    let mut out = Vec::with_capacity(key.len());
    let mut bytes = key.bytes();
    let digit = |b: Option<u8>| char::from(b?).to_digit(16);
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => match (digit(bytes.next()), digit(bytes.next())) {
                (Some(high), Some(low)) => out.push((high * 16 + low) as u8),
                _ => return key.to_owned(),
            },
            byte => out.push(byte),
        }
    }
    String::from_utf8(out).unwrap_or_else(|_| key.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(HeaderName::try_from(*name).unwrap(), HeaderValue::from_str(value).unwrap());
        }
        map
    }

    #[test]
    fn strips_every_spelling() {
        let mut headers = HeaderMap::new();
        for name in [
            "x-remote-user",
            "x_remote_user",
            "x-remote_uid",
            "x_remote_extra_k",
            "x-remote-extra-k",
            "x-other",
        ] {
            headers.append(name, http::HeaderValue::from_static("v"));
        }
        RequestHeader::default().strip(&mut headers);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-other"]);
    }

    #[test]
    fn reads_user_groups_and_extra() {
        let rule = RequestHeader::default();
        let mut map = headers(&[
            ("X-Remote-User", "alice"),
            ("X-Remote-Uid", "7"),
            ("X-Remote-Group", "devs"),
            ("X-Remote-Group", "ops"),
            ("X-Remote-Extra-Example.com%2fScope", "a"),
            ("X-Remote-Extra-Example.com%2fScope", "b"),
            ("X-Remote-Extra-Bad%2", "c"),
            ("Accept", "*/*"),
        ]);
        let user = rule.authenticate("front-proxy-client", &map).unwrap().unwrap().user;
        expect_test::expect![[r#"
            UserInfo {
                name: "alice",
                uid: "7",
                groups: [
                    "devs",
                    "ops",
                ],
                extra: {
                    "bad%2": [
                        "c",
                    ],
                    "example.com/scope": [
                        "a",
                        "b",
                    ],
                },
            }
        "#]]
        .assert_debug_eq(&user);
        rule.strip(&mut map);
        assert_eq!(map.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["accept"]);
        assert_eq!(rule.authenticate("front-proxy-client", &map), Ok(None));
        assert_eq!(
            rule.authenticate("mallory", &map).unwrap_err().0,
            "x509: subject with cn=mallory is not in the allowed list"
        );
    }

    proptest! {
        #[test]
        fn any_headers_are_read(pairs in prop::collection::vec(("x-remote-(user|group|uid|extra-[a-z%0-9]{0,8})", any::<Vec<u8>>()), 0..8)) {
            let mut map = HeaderMap::new();
            for (name, value) in &pairs {
                if let (Ok(name), Ok(value)) = (HeaderName::try_from(name.as_str()), HeaderValue::from_bytes(value)) {
                    map.append(name, value);
                }
            }
            let rule = RequestHeader::default();
            let _ = rule.authenticate("front-proxy-client", &map);
            rule.strip(&mut map);
            prop_assert!(map.is_empty());
        }
    }
}
