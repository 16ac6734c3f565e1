//! What a registry asks for in `WWW-Authenticate`.

use http::header::{GetAll, HeaderValue};
use kaji_meta::query::escape;

/// A scheme that is understood.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// A token of a service.
    Bearer { realm: String, service: String, scope: String },
    /// User name and password.
    Basic,
}

/// The challenges of an answer, tokens first.
pub(super) fn parse(headers: GetAll<'_, HeaderValue>) -> Vec<Challenge> {
    let mut found: Vec<Challenge> = headers.iter().filter_map(|h| h.to_str().ok()).filter_map(one).collect();
    found.sort_by_key(|challenge| matches!(challenge, Challenge::Basic));
    found
}

fn one(text: &str) -> Option<Challenge> {
    let (scheme, mut rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
    if scheme.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let (mut realm, mut service, mut scope) = (String::new(), String::new(), String::new());
    while let Some((key, after)) = rest.split_once('=') {
        let (value, after) = parameter(after);
        match key.trim_matches([' ', ',']).to_ascii_lowercase().as_str() {
            "realm" => realm = value,
            "service" => service = value,
            "scope" => scope = value,
            _ => {}
        }
        rest = after;
    }
    (!realm.is_empty()).then_some(Challenge::Bearer { realm, service, scope })
}

/// A quoted string or a word, and what follows.
fn parameter(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(',').unwrap_or(text.len());
        return (text[..end].trim().to_owned(), &text[end..]);
    };
    let (mut value, mut escaped) = (String::new(), false);
    for (at, c) in quoted.char_indices() {
        match c {
            _ if escaped => {
                value.push(c);
                escaped = false;
            }
            '\\' => escaped = true,
            '"' => return (value, &quoted[at + 1..]),
            _ => value.push(c),
        }
    }
    (value, "")
}

/// A query or a form.
pub(super) fn query(pairs: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (key, value) in pairs.iter().filter(|(_, value)| !value.is_empty()) {
        if !text.is_empty() {
            text.push('&');
        }
        text.push_str(key);
        text.push('=');
        text.push_str(&escape(value));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_parsed() {
        let text =
            r#"Bearer realm="https://auth.x/token?a=b",service="reg,x", scope="repository:a/b:pull,push""#;
        let wanted = Challenge::Bearer {
            realm: "https://auth.x/token?a=b".into(),
            service: "reg,x".into(),
            scope: "repository:a/b:pull,push".into(),
        };
        assert_eq!(one(text), Some(wanted));
        assert_eq!(one("basic realm=x"), Some(Challenge::Basic));
        for none in ["", "Digest x=y", "Bearer", "Bearer realm=", "Bearer realm"] {
            assert_eq!(one(none), None, "{none}");
        }
        assert_eq!(query(&[("a", "b c/:"), ("d", ""), ("e", "f")]), "a=b%20c%2F%3A&e=f");
    }
}
