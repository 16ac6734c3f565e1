//! The query of a request, read once: authorization, audit, flow control, forwarding and the verbs all ask the same value.
//!
//! Invariants:
//! - Pairs are those that Go's `url.ParseQuery` keeps, in order: one with a semicolon or a broken escape is dropped.
//! - Of a parameter that is given more than once, the first value counts for whatever is a single value, all of them where
//!   it is a list (`dryRun`), as in the conversions of apimachinery's `url.Values`.
//! - A selector is parsed once; what was authorized is the selector that the verb filters by.

use crate::{fields, labels, text::quote};
use std::{
    fmt,
    num::{IntErrorKind, ParseIntError},
    sync::{Arc, OnceLock},
};

/// The parameters of a request. Cheap to clone; clones share what was parsed.
#[derive(Clone, Default)]
pub struct Query(Option<Arc<Inner>>);

struct Inner {
    pairs: Vec<(String, String)>,
    fields: OnceLock<Result<Option<fields::Selector>, String>>,
    labels: OnceLock<Result<Option<labels::Selector>, String>>,
}

/// `ListOptions` (meta.k8s.io/v1) of a query, converted but not yet checked against each other.
#[derive(Clone, Copy, Debug)]
pub struct ListOptions<'a> {
    /// `labelSelector`; `None` selects everything.
    pub labels: Option<&'a labels::Selector>,
    /// `fieldSelector`; `None` selects everything.
    pub fields: Option<&'a fields::Selector>,
    /// `watch`
    pub watch: bool,
    /// `allowWatchBookmarks`
    pub bookmarks: bool,
    /// `resourceVersion`
    pub resource_version: &'a str,
    /// `resourceVersionMatch`
    pub resource_version_match: &'a str,
    /// `timeoutSeconds`
    pub timeout_seconds: Option<i64>,
    /// `limit`
    pub limit: i64,
    /// `continue`
    pub continue_token: &'a str,
    /// `sendInitialEvents`
    pub send_initial_events: Option<bool>,
}

/// Parameters that the conversions of apimachinery read as booleans.
const FLAGS: [&str; 6] = [
    "watch",
    "allowWatchBookmarks",
    "sendInitialEvents",
    "force",
    "orphanDependents",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
];

/// Further parameters of requests for resources that have one value.
const SCALARS: [&str; 17] = [
    "labelSelector",
    "fieldSelector",
    "shardSelector",
    "resourceVersion",
    "resourceVersionMatch",
    "timeoutSeconds",
    "limit",
    "continue",
    "fieldManager",
    "fieldValidation",
    "gracePeriodSeconds",
    "propagationPolicy",
    "uid",
    "includeObject",
    "pretty",
    "timeout",
    "export",
];

impl Query {
    /// Reads what follows the `?` of a URL.
    pub fn parse(raw: &str) -> Query {
        let kept = |pair: &&str| !pair.is_empty() && !pair.contains(';') && !has_broken_escape(pair);
        raw.split('&')
            .filter(kept)
            .map(|pair| {
                let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                (unescape(key, true), unescape(value, true))
            })
            .collect()
    }

    /// With one value of a parameter in place of those that it has.
    #[must_use]
    pub fn with(&self, key: &str, value: &str) -> Query {
        let others = self.pairs().iter().filter(|(k, _)| k != key);
        others.map(|(k, v)| (k.as_str(), v.as_str())).chain([(key, value)]).collect()
    }

    /// Whether there are no parameters.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The first value of a parameter.
    pub fn first(&self, key: &str) -> Option<&str> {
        self.pairs().iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// The first value of a parameter; empty without one, as Go's `Values.Get`.
    pub fn text(&self, key: &str) -> &str {
        self.first(key).unwrap_or_default()
    }

    /// All values of a parameter, in order.
    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.pairs().iter().filter(move |(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// A parameter as a boolean: present is true, also when it is empty, unless its first value is `0` or `false` in any
    /// case.
    pub fn flag(&self, key: &str) -> Option<bool> {
        self.first(key).map(is_true)
    }

    /// A parameter as a whole number.
    ///
    /// # Errors
    /// Go's text for what is none; the empty value is none either.
    pub fn number(&self, key: &str) -> Result<Option<i64>, String> {
        self.first(key).map(|text| go_int(text, "ParseInt", text.parse::<i64>())).transpose()
    }

    /// `fieldSelector`, `None` if it is absent or empty.
    ///
    /// # Errors
    /// Why it does not parse.
    pub fn field_selector(&self) -> Result<Option<&fields::Selector>, &str> {
        let Some(inner) = &self.0 else { return Ok(None) };
        let parse = || match self.text("fieldSelector") {
            "" => Ok(None),
            text => fields::Selector::parse(text).map(Some).map_err(|e| e.to_string()),
        };
        inner.fields.get_or_init(parse).as_ref().map(Option::as_ref).map_err(String::as_str)
    }

    /// `labelSelector`, `None` if it is absent or empty.
    ///
    /// # Errors
    /// Why it does not parse.
    pub fn label_selector(&self) -> Result<Option<&labels::Selector>, &str> {
        let Some(inner) = &self.0 else { return Ok(None) };
        let parse = || match self.text("labelSelector") {
            "" => Ok(None),
            text => labels::Selector::parse(text).map(Some),
        };
        inner.labels.get_or_init(parse).as_ref().map(Option::as_ref).map_err(String::as_str)
    }

    /// The options of a list, a watch or the deletion of a collection.
    ///
    /// # Errors
    /// Upstream's text for the first that cannot be converted: numbers, then selectors.
    pub fn list_options(&self) -> Result<ListOptions<'_>, String> {
        let timeout_seconds = self.number("timeoutSeconds")?;
        let limit = self.number("limit")?.unwrap_or_default();
        Ok(ListOptions {
            labels: self.label_selector()?,
            fields: self.field_selector()?,
            watch: self.watches(),
            bookmarks: self.flag("allowWatchBookmarks").unwrap_or_default(),
            resource_version: self.text("resourceVersion"),
            resource_version_match: self.text("resourceVersionMatch"),
            timeout_seconds,
            limit,
            continue_token: self.text("continue"),
            send_initial_events: self.flag("sendInitialEvents"),
        })
    }

    /// Whether a GET of a collection requests a watch; recognised even where other options do not convert.
    pub fn watches(&self) -> bool {
        self.flag("watch").unwrap_or_default()
    }

    /// The query as it is sent on, written as Go's `Values.Encode` does: sorted by key, each key's values in order. For a
    /// request about a resource, a parameter of one value is sent once, and booleans as `true` or `false`: a server that
    /// reads repeated or unusual values in another way must not carry out something that was not authorized.
    pub fn encode(&self, resource: bool) -> String {
        let single = |key: &str| FLAGS.contains(&key) || SCALARS.contains(&key);
        let mut pairs: Vec<(&str, &str)> = Vec::new();
        for (key, value) in self.pairs() {
            if !resource || !single(key) {
                pairs.push((key, value));
            } else if !pairs.iter().any(|(k, _)| k == key) {
                let flag = FLAGS.contains(&key.as_str());
                pairs.push((
                    key,
                    if !flag {
                        value
                    } else if is_true(value) {
                        "true"
                    } else {
                        "false"
                    },
                ));
            }
        }
        // Stable: the values of a key stay in order.
        pairs.sort_by_key(|(key, _)| *key);
        let mut out = String::new();
        for (key, value) in pairs {
            if !out.is_empty() {
                out.push('&');
            }
            out.push_str(&escape_plus(key));
            out.push('=');
            out.push_str(&escape_plus(value));
        }
        out
    }

    fn pairs(&self) -> &[(String, String)] {
        self.0.as_ref().map_or(&[], |inner| &inner.pairs)
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Query {
    fn from_iter<T: IntoIterator<Item = (K, V)>>(pairs: T) -> Query {
        let pairs: Vec<(String, String)> = pairs.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
        if pairs.is_empty() {
            return Query(None);
        }
        Query(Some(Arc::new(Inner { pairs, fields: OnceLock::new(), labels: OnceLock::new() })))
    }
}

impl<K: Into<String>, V: Into<String>, const N: usize> From<[(K, V); N]> for Query {
    fn from(pairs: [(K, V); N]) -> Query {
        pairs.into_iter().collect()
    }
}

impl fmt::Debug for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.pairs()).finish()
    }
}

impl PartialEq for Query {
    fn eq(&self, other: &Query) -> bool {
        self.pairs() == other.pairs()
    }
}

impl Eq for Query {}

fn is_true(text: &str) -> bool {
    text != "0" && !text.eq_ignore_ascii_case("false")
}

/// The outcome of reading a number, with the error text of Go's function of that name.
///
/// # Errors
/// For what is no number or does not fit.
pub fn go_int<T>(text: &str, function: &str, parsed: Result<T, ParseIntError>) -> Result<T, String> {
    parsed.map_err(|e| {
        let why = match e.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
            _ => "invalid syntax",
        };
        format!("strconv.{function}: parsing {}: {why}", quote(text))
    })
}

/// Whether a percent sign is not followed by two hexadecimal digits.
pub fn has_broken_escape(text: &str) -> bool {
    let digits = |rest: &str| rest.bytes().take(2).filter(u8::is_ascii_hexdigit).count();
    text.split('%').skip(1).any(|rest| digits(rest) < 2)
}

/// Percent-decodes, with `plus` also `+` to a space; invalid UTF-8 becomes U+FFFD, broken escapes stay.
pub fn unescape(text: &str, plus: bool) -> String {
    if !text.contains(['%', '+']) {
        return text.to_owned();
    }
    let bytes = text.as_bytes();
    let hex = |b: u8| (b as char).to_digit(16);
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let digits = (bytes.get(i + 1).copied().and_then(hex), bytes.get(i + 2).copied().and_then(hex));
        match (bytes[i], digits) {
            (b'%', (Some(high), Some(low))) => {
                out.push((high * 16 + low) as u8);
                i += 2;
            }
            (b'+', _) if plus => out.push(b' '),
            (b, _) => out.push(b),
        }
        i += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Percent-encodes a path segment or query value: all but RFC 3986's unreserved characters.
pub fn escape(text: &str) -> String {
    escape_except(text.as_bytes(), is_unreserved)
}

/// Percent-encodes the bytes that are not `plain`.
pub fn escape_except(bytes: &[u8], plain: impl Fn(u8) -> bool) -> String {
    use fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len()), |mut out, byte| {
        if plain(*byte) {
            out.push(char::from(*byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// As Go's `url.QueryEscape`.
fn escape_plus(text: &str) -> String {
    escape_except(text.as_bytes(), |byte| byte == b' ' || is_unreserved(byte)).replace(' ', "+")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn drops_the_pairs_that_go_drops() {
        let query = Query::parse("a=b+c&d=%2Fx&e&f=%zz&g=1;h=2&i=%4&=&&%=1&j=k%3Bl");
        let expected = [("a", "b c"), ("d", "/x"), ("e", ""), ("", ""), ("j", "k;l")];
        assert_eq!(query, Query::from(expected));
        assert_eq!(Query::parse(""), Query::default());
    }

    #[test]
    fn reads_values_as_upstream_converts_them() {
        let query =
            Query::parse("b=&b=false&c=False&d=0&d=1&e=f&n=&m=%2B5&x=7&x=y&y=1_0&z=99999999999999999999");
        assert_eq!(
            ["a", "b", "c", "d", "e"].map(|k| query.flag(k)),
            [None, Some(true), Some(false), Some(false), Some(true)]
        );
        let numbers = ["a", "m", "x", "n", "y", "z"].map(|k| query.number(k));
        expect_test::expect![[r#"
            [
                Ok(
                    None,
                ),
                Ok(
                    Some(
                        5,
                    ),
                ),
                Ok(
                    Some(
                        7,
                    ),
                ),
                Err(
                    "strconv.ParseInt: parsing \"\": invalid syntax",
                ),
                Err(
                    "strconv.ParseInt: parsing \"1_0\": invalid syntax",
                ),
                Err(
                    "strconv.ParseInt: parsing \"99999999999999999999\": value out of range",
                ),
            ]
        "#]]
        .assert_debug_eq(&numbers);
        assert_eq!(query.all("d").collect::<Vec<_>>(), ["0", "1"]);
    }

    #[test]
    fn selectors_are_those_of_the_first_value() {
        let fields = |raw: &str| Query::parse(raw).field_selector().map(|s| s.map(ToString::to_string)).ok();
        assert_eq!(fields("fieldSelector=&fieldSelector=a%3Db"), Some(None));
        assert_eq!(fields("fieldSelector=a%3Db&fieldSelector="), Some(Some("a=b".into())));
        assert_eq!(fields("fieldSelector=a"), None);
        let broken = Query::parse("fieldSelector=a%3Db&labelSelector=in%20(");
        assert!(broken.label_selector().is_err() && broken.list_options().is_err());
        assert!(broken.field_selector().is_ok());
    }

    #[test]
    fn sends_on_what_was_understood() {
        let query = Query::parse("watch=f&watch=0&dryRun=All&dryRun=&command=b&command=a&z=%20%2F&z=&a=1;2");
        assert_eq!(query.encode(true), "command=b&command=a&dryRun=All&dryRun=&watch=true&z=+%2F&z=");
        assert_eq!(query.encode(false), "command=b&command=a&dryRun=All&dryRun=&watch=f&watch=0&z=+%2F&z=");
    }

    fn raw() -> impl Strategy<Value = String> {
        let key = prop_oneof![
            Just("watch"),
            Just("fieldSelector"),
            Just("labelSelector"),
            Just("dryRun"),
            Just("limit"),
            Just("Watch"),
            Just("%77atch"),
            Just("x")
        ];
        let value = prop_oneof![
            Just(""),
            Just("=1"),
            Just("=0"),
            Just("="),
            Just("=false"),
            Just("=a%3Db"),
            Just("=All"),
            Just("=%zz"),
            Just("=1;"),
            Just("=a=b"),
            Just("=%41+%26"),
            Just("=é")
        ];
        proptest::collection::vec((key, value), 0..6)
            .prop_map(|pairs| pairs.iter().map(|(k, v)| format!("{k}{v}")).collect::<Vec<_>>().join("&"))
    }

    proptest! {
        /// What is sent on is understood there as it was here, whichever of repeated values is read.
        #[test]
        fn what_is_sent_on_means_the_same(raw in raw()) {
            let here = Query::parse(&raw);
            let there = Query::parse(&here.encode(true));
            for key in ["watch", "force"] {
                prop_assert_eq!(here.flag(key), there.flag(key));
                prop_assert!(there.all(key).count() <= 1);
            }
            for key in ["fieldSelector", "labelSelector", "limit"] {
                prop_assert_eq!(here.first(key), there.first(key));
                prop_assert!(there.all(key).count() <= 1);
            }
            prop_assert_eq!(here.all("dryRun").collect::<Vec<_>>(), there.all("dryRun").collect::<Vec<_>>());
            prop_assert_eq!(here.all("x").collect::<Vec<_>>(), there.all("x").collect::<Vec<_>>());
            prop_assert_eq!(there.encode(true), here.encode(true));
        }
    }
}
