//! Checks of file paths and of the names only pod specs have.

use kaji_meta::{
    Path,
    field::{Error, ErrorList},
};
use regex::Regex;
use std::sync::LazyLock;

/// The range of file modes.
pub(super) const FILE_MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";

/// A file mode, if given.
pub(super) fn file_mode(errs: &mut ErrorList, path: &Path, mode: Option<i64>) {
    if let Some(m) = mode
        && !(0..=0o777).contains(&m)
    {
        errs.push(Error::invalid(path, m, FILE_MODE));
    }
}

/// No `..` among the path's segments.
pub fn no_backsteps(errs: &mut ErrorList, path: &Path, target: &str) {
    if target.split('/').any(|s| s == "..") {
        errs.push(Error::invalid(path, target, "must not contain '..'"));
    }
}

/// Relative, and no `..` in it.
pub(super) fn local_descending(errs: &mut ErrorList, path: &Path, target: &str) {
    if target.starts_with('/') {
        errs.push(Error::invalid(path, target, "must be a relative path"));
    }
    no_backsteps(errs, path, target);
}

/// Relative, no `..` in it, and not beginning with `..` either (the kubelet's atomic writer needs those names).
pub(super) fn local_non_reserved(errs: &mut ErrorList, path: &Path, target: &str) {
    local_descending(errs, path, target);
    if target.starts_with("..") && !target.starts_with("../") {
        errs.push(Error::invalid(path, target, "must not start with '..'"));
    }
}

#[allow(clippy::expect_used)]
fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a constant pattern")
}

/// The pattern of sysctl names, in which slashes may stand for dots.
pub(super) const SYSCTL: &str = r"^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";

/// Whether a sysctl's name is well-formed.
pub(super) fn is_sysctl_name(s: &str) -> bool {
    static PATTERN: LazyLock<Regex> = LazyLock::new(|| regex(SYSCTL));
    s.len() <= 253 && PATTERN.is_match(s)
}

/// An iSCSI qualified name, EUI or NAA.
pub(super) fn is_iscsi_name(s: &str) -> bool {
    static IQN: LazyLock<Regex> =
        LazyLock::new(|| regex(r"iqn\.\d{4}-\d{2}\.([[:alnum:].-]+)(:[^,;*&$|\s]+)$"));
    let hex = |n: usize| s.len() == 4 + n && s.chars().skip(4).all(|c| c.is_ascii_alphanumeric());
    match s.get(..3) {
        Some("iqn") => IQN.is_match(s),
        Some("eui") => hex(16),
        Some("naa") => hex(32),
        _ => false,
    }
}
