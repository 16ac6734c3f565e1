//! Semantic versions (semver.org 2.0), and the lenient form that Kubernetes normalizes. Order and comparison functions
//! are shared with quantities.

use super::{Called, Native, no_overload};
use crate::{
    error::Error,
    value::{Ext, Value},
};
use std::cmp::Ordering;

pub(super) const DECLARATIONS: &str = "\
semver string_to_semver string semver
semver string_bool_to_semver string,bool semver
isSemver is_semver_string string bool
isSemver is_semver_string_bool string,bool bool
major semver_major .semver int
minor semver_minor .semver int
patch semver_patch .semver int
";

pub(super) fn native(name: &str) -> Option<Native> {
    Some(match name {
        "semver" => |args| match read(args) {
            Some(read) => read.map(|v| Value::Ext(Ext::Semver(v.into()))).map_err(Error::eval),
            None => no_overload(),
        },
        "isSemver" => |args| match read(args) {
            Some(read) => Ok(Value::Bool(read.is_ok())),
            None => no_overload(),
        },
        "major" => |args| part(args, 0),
        "minor" => |args| part(args, 1),
        "patch" => |args| part(args, 2),
        _ => return None,
    })
}

fn read(args: &[Value<'_>]) -> Option<Result<Semver, String>> {
    match args {
        [Value::String(s)] | [Value::String(s), Value::Bool(false)] => Some(Semver::parse(s)),
        [Value::String(s), Value::Bool(true)] => Some(Semver::lenient(s)),
        _ => None,
    }
}

fn part<'a>(args: &[Value<'a>], index: usize) -> Called<'a> {
    let [Value::Ext(Ext::Semver(v))] = args else { return no_overload() };
    let number = v.numbers.get(index).copied().unwrap_or_default();
    Ok(Value::Int(i64::try_from(number).unwrap_or(i64::MAX)))
}

/// A version. Build metadata is checked and forgotten: it has no part in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Semver {
    numbers: [u64; 3],
    pre: Vec<Identifier>,
}

/// A part of a pre-release; numbers come before words.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Identifier {
    Number(u64),
    Word(String),
}

fn number(text: &str, what: &str) -> Result<u64, String> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("Invalid character(s) found in {what} number {text:?}"));
    }
    if text.len() > 1 && text.starts_with('0') {
        return Err(format!("{} number must not contain leading zeroes {text:?}", title(what)));
    }
    text.parse().map_err(|_| format!("strconv.ParseUint: parsing {text:?}: value out of range"))
}

fn title(what: &str) -> String {
    let mut chars = what.chars();
    chars.next().map(|c| c.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

impl Semver {
    pub(crate) fn parse(s: &str) -> Result<Semver, String> {
        if s.is_empty() {
            return Err("Version string empty".into());
        }
        let parts: Vec<&str> = s.splitn(3, '.').collect();
        let [major, minor, rest] = parts.as_slice() else {
            return Err("No Major.Minor.Patch elements found".into());
        };
        let (rest, build) = rest.split_once('+').map_or((*rest, None), |(r, b)| (r, Some(b)));
        let (patch, pre) = rest.split_once('-').map_or((rest, None), |(p, r)| (p, Some(r)));
        let numbers = [number(major, "major")?, number(minor, "minor")?, number(patch, "patch")?];
        let allowed = |t: &str| t.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        let mut identifiers = vec![];
        for text in pre.map(|p| p.split('.')).into_iter().flatten() {
            identifiers.push(match text {
                "" => return Err("Prerelease is empty".into()),
                t if t.bytes().all(|b| b.is_ascii_digit()) => {
                    if t.len() > 1 && t.starts_with('0') {
                        return Err(format!(
                            "Numeric PreRelease version must not contain leading zeroes {t:?}"
                        ));
                    }
                    Identifier::Number(t.parse().map_err(|_| format!("value out of range: {t:?}"))?)
                }
                t if allowed(t) => Identifier::Word(t.to_owned()),
                t => return Err(format!("Invalid character(s) found in prerelease {t:?}")),
            });
        }
        for text in build.map(|b| b.split('.')).into_iter().flatten() {
            if text.is_empty() {
                return Err("Build meta data is empty".into());
            }
            if !allowed(text) {
                return Err(format!("Invalid character(s) found in build meta data {text:?}"));
            }
        }
        Ok(Semver { numbers, pre: identifiers })
    }

    /// Without a leading `v` and leading zeroes; missing numbers are 0.
    fn lenient(s: &str) -> Result<Semver, String> {
        let s = s.strip_prefix('v').unwrap_or(s);
        let mut parts: Vec<String> = s
            .splitn(3, '.')
            .map(|p| match p.len() {
                0 | 1 => p.to_owned(),
                _ => {
                    let stripped = p.trim_start_matches('0');
                    let zero = !stripped.starts_with(|c: char| c.is_ascii_digit());
                    format!("{}{stripped}", if zero { "0" } else { "" })
                }
            })
            .collect();
        if parts.len() < 3 && parts.last().is_some_and(|p| p.contains(['+', '-'])) {
            return Err("short version cannot contain PreRelease/Build meta data".into());
        }
        parts.resize(3, "0".into());
        Semver::parse(&parts.join("."))
    }
}

impl PartialOrd for Semver {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Semver {
    fn cmp(&self, other: &Self) -> Ordering {
        self.numbers.cmp(&other.numbers).then_with(|| match (self.pre.is_empty(), other.pre.is_empty()) {
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            _ => self.pre.cmp(&other.pre),
        })
    }
}
