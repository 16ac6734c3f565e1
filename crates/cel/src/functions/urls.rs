//! URLs, as Go's `net/url` reads absolute ones.

use super::{Called, Native, no_overload};
use crate::{
    error::Error,
    value::{Constructed, Ext, Map, Value},
};
use kaji_meta::query::escape_except;
use std::sync::Arc;

pub(super) const DECLARATIONS: &str = "\
url string_to_url string url
getScheme url_get_scheme .url string
getHost url_get_host .url string
getHostname url_get_hostname .url string
getPort url_get_port .url string
getEscapedPath url_get_escaped_path .url string
getQuery url_get_query .url map(string,list(string))
isURL is_url_string string bool
";

pub(super) fn native(name: &str) -> Option<Native> {
    Some(match name {
        "url" => |args| match args {
            [Value::String(s)] => match Url::parse(s) {
                Ok(url) => Ok(Value::Ext(Ext::Url(url.into()))),
                Err(e) => Err(Error::eval(format!("URL parse error during conversion from string: {e}"))),
            },
            _ => no_overload(),
        },
        "isURL" => |args| match args {
            [Value::String(s)] => Ok(Value::Bool(Url::parse(s).is_ok())),
            _ => no_overload(),
        },
        "getScheme" => |args| part(args, |u| u.scheme.clone()),
        "getHost" => |args| part(args, |u| u.host.clone()),
        "getHostname" => |args| part(args, |u| u.host_and_port().0.to_owned()),
        "getPort" => |args| part(args, |u| u.host_and_port().1.to_owned()),
        "getEscapedPath" => |args| part(args, |u| u.path.clone()),
        "getQuery" => query,
        _ => return None,
    })
}

fn part<'a>(args: &[Value<'a>], of: fn(&Url) -> String) -> Called<'a> {
    match args {
        [Value::Ext(Ext::Url(url))] => Ok(Value::text(of(url))),
        _ => no_overload(),
    }
}

fn query<'a>(args: &[Value<'a>]) -> Called<'a> {
    let [Value::Ext(Ext::Url(url))] = args else { return no_overload() };
    let mut lists: Vec<(String, Vec<Value<'a>>)> = vec![];
    for pair in url.query.split('&').filter(|p| !p.is_empty() && !p.contains(';')) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (Some(key), Some(value)) = (decode(key, true), decode(value, true)) else { continue };
        match lists.iter_mut().find(|(k, _)| *k == key) {
            Some((_, list)) => list.push(Value::text(value)),
            None => lists.push((key, vec![Value::text(value)])),
        }
    }
    let mut constructed = Constructed::default();
    for (key, list) in lists {
        constructed.insert(Value::text(key), Value::list(list))?;
    }
    Ok(Value::Map(Map::Constructed(Arc::new(constructed))))
}

/// A URL in parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Url {
    scheme: String,
    /// What follows the scheme, if that is no path.
    opaque: String,
    user: Option<String>,
    /// With the port, if there is one.
    host: String,
    /// Escaped.
    path: String,
    query: String,
    fragment: Option<String>,
}

fn decode(s: &str, plus: bool) -> Option<String> {
    let mut out = Vec::with_capacity(s.len());
    let mut bytes = s.bytes();
    while let Some(b) = bytes.next() {
        match b {
            b'%' => {
                let hex = [bytes.next()?, bytes.next()?];
                out.push(u8::from_str_radix(std::str::from_utf8(&hex).ok()?, 16).ok()?);
            }
            b'+' if plus => out.push(b' '),
            b => out.push(b),
        }
    }
    Some(String::from_utf8_lossy(&out).into_owned())
}

impl Url {
    /// Reads an absolute URL or an absolute path; the error is Go's.
    pub(crate) fn parse(s: &str) -> Result<Url, String> {
        let failed = |why: &str| format!("parse {s:?}: {why}");
        if s.bytes().any(|b| b < 0x20 || b == 0x7f) {
            return Err(failed("net/url: invalid control character in URL"));
        }
        if s.is_empty() {
            return Err(failed("empty url"));
        }
        let (scheme, rest) = scheme(s).map_err(|e| failed(&e))?;
        let (rest, fragment) = rest.split_once('#').map_or((rest, None), |(r, f)| (r, Some(f.to_owned())));
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if !rest.starts_with('/') {
            if scheme.is_empty() {
                return Err(failed("invalid URI for request"));
            }
            // As in "mailto:a@b".
            let (scheme, opaque, query) = (scheme.to_ascii_lowercase(), rest.to_owned(), query.to_owned());
            return Ok(Url { scheme, opaque, query, fragment, ..Url::default() });
        }
        let (authority, path) = match rest.strip_prefix("//") {
            Some(after) if !scheme.is_empty() || !rest.starts_with("///") => {
                let end = after.find('/').unwrap_or(after.len());
                (&after[..end], &after[end..])
            }
            _ => ("", rest),
        };
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user.to_owned()), host),
            None => (None, authority),
        };
        check_host(host).map_err(|e| failed(&e))?;
        if let Some(bad) = bad_escape(path) {
            return Err(failed(&format!("invalid URL escape {bad:?}")));
        }
        Ok(Url {
            scheme: scheme.to_ascii_lowercase(),
            opaque: String::new(),
            user,
            host: decode(host, false).unwrap_or_else(|| host.to_owned()),
            path: escape(path),
            query: query.to_owned(),
            fragment,
        })
    }

    /// Without brackets; the port is empty when there is none.
    fn host_and_port(&self) -> (&str, &str) {
        let host = self.host.as_str();
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => (name, port),
            _ => (host, ""),
        };
        (name.strip_prefix('[').and_then(|n| n.strip_suffix(']')).unwrap_or(name), port)
    }
}

fn scheme(s: &str) -> Result<(&str, &str), String> {
    for (i, c) in s.char_indices() {
        match c {
            'a'..='z' | 'A'..='Z' => {}
            '0'..='9' | '+' | '-' | '.' if i == 0 => return Ok(("", s)),
            '0'..='9' | '+' | '-' | '.' => {}
            ':' if i == 0 => return Err("missing protocol scheme".into()),
            ':' => return Ok((&s[..i], &s[i + 1..])),
            _ => return Ok(("", s)),
        }
    }
    Ok(("", s))
}

fn check_host(host: &str) -> Result<(), String> {
    let port = match host.strip_prefix('[') {
        Some(rest) => match rest.rsplit_once(']') {
            Some((_, port)) => port,
            None => return Err("missing ']' in host".into()),
        },
        None => host.find(':').map_or("", |i| &host[i..]),
    };
    let digits = port.strip_prefix(':').unwrap_or(port);
    let is_port = port.starts_with(':') && digits.bytes().all(|b| b.is_ascii_digit());
    if !port.is_empty() && !is_port {
        return Err(format!("invalid port {port:?} after host"));
    }
    match host.chars().find(|c| matches!(c, ' ' | '"' | '\\' | '^' | '`' | '{' | '|' | '}')) {
        Some(c) => Err(format!("invalid character {:?} in host name", c.to_string())),
        None => Ok(()),
    }
}

/// An escape that is none.
fn bad_escape(path: &str) -> Option<String> {
    path.match_indices('%').find_map(|(i, _)| {
        let escape: String = path[i..].chars().take(3).collect();
        let fits = escape.len() == 3 && escape[1..].bytes().all(|b| b.is_ascii_hexdigit());
        (!fits).then_some(escape)
    })
}

/// Escapes what a path must not hold.
fn escape(path: &str) -> String {
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@!'()*[]%".contains(&b);
    escape_except(path.as_bytes(), legal)
}
