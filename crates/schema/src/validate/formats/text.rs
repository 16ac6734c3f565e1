//! Formats that are parsed by code instead of a pattern.

use std::sync::LazyLock;

use regex::Regex;

/// "2006-01-02".
pub(super) fn date(s: &str) -> bool {
    let b = s.as_bytes();
    let digits = |r: std::ops::Range<usize>| s.get(r).filter(|t| t.bytes().all(|c| c.is_ascii_digit()));
    if b.len() != 10 || b[4] != b'-' || b[7] != b'-' {
        return false;
    }
    let number = |r| digits(r).and_then(|t| t.parse::<u32>().ok());
    let (Some(year), Some(month), Some(day)) = (number(0..4), number(5..7), number(8..10)) else {
        return false;
    };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => 0,
    };
    (1..=days).contains(&day)
}

/// A date, "t", a time and a zone; case does not matter.
pub(super) fn date_time(s: &str) -> bool {
    static TIME: LazyLock<Option<Regex>> = LazyLock::new(|| {
        Regex::new("^([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))$").ok()
    });
    let lower = s.to_lowercase();
    let mut parts = lower.split('t');
    let (Some(day), Some(time)) = (parts.next(), parts.next()) else { return false };
    let Some(c) = TIME.as_ref().and_then(|r| r.captures(time)) else { return false };
    date(day) && &c[1] <= "23" && &c[2] <= "59" && &c[3] <= "59"
}

/// A Go duration, or numbers with spelled-out units ("3 days").
pub(super) fn duration(s: &str) -> bool {
    if kaji_meta::duration::parse(s).is_ok() {
        return true;
    }
    static PART: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new("([0-9]+)\\s*([A-Za-zµ]+)").ok());
    const EXACT: [&str; 16] = [
        "ns", "nano", "us", "µs", "micro", "ms", "milli", "s", "sec", "m", "min", "h", "hr", "hour", "d", "w",
    ];
    const PREFIXES: [&str; 8] = ["nano", "micro", "milli", "sec", "min", "hour", "day", "week"];
    let Some(part) = PART.as_ref() else { return false };
    let mut known = false;
    for c in part.captures_iter(s) {
        if c[1].parse::<i64>().is_err() {
            return false;
        }
        let unit = c[2].to_lowercase();
        known |= unit == "wk" || EXACT.contains(&&*unit) || PREFIXES.iter().any(|p| unit.starts_with(p));
    }
    known
}

/// Whether a text is an absolute URI or an absolute path, as Go's `url.ParseRequestURI` takes them.
pub fn request_uri(s: &str) -> bool {
    if s.is_empty() || s.bytes().any(|b| b < 0x20 || b == 0x7f) {
        return false;
    }
    if s == "*" {
        return true;
    }
    let (scheme, rest) = match s.find(|c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c))) {
        Some(i) if i > 0 && s.as_bytes()[i] == b':' && s.as_bytes()[0].is_ascii_alphabetic() => {
            (&s[..i], &s[i + 1..])
        }
        Some(0) if s.starts_with(':') => return false,
        _ => ("", s),
    };
    let rest = rest.split('?').next().unwrap_or("");
    if !rest.starts_with('/') {
        return !scheme.is_empty();
    }
    let (authority, path) = match rest.strip_prefix("//") {
        Some(r) if !scheme.is_empty() || !rest.starts_with("///") => {
            r.split_at(r.find('/').unwrap_or(r.len()))
        }
        _ => ("", rest),
    };
    let host = authority.rsplit('@').next().unwrap_or("");
    percent_encoded(path) && host_and_port(host)
}

fn host_and_port(host: &str) -> bool {
    let port = match host.strip_prefix('[') {
        Some(r) => match r.split_once(']') {
            Some((_, port)) => port,
            None => return false,
        },
        None => {
            let end = host.rfind(':').unwrap_or(host.len());
            if host[..end].contains([' ', '<', '>', '"', '\\', '^', '`', '{', '|', '}', ':']) {
                return false;
            }
            &host[end..]
        }
    };
    match port.strip_prefix(':') {
        Some(p) => p.bytes().all(|b| b.is_ascii_digit()),
        None => port.is_empty(),
    }
}

fn percent_encoded(s: &str) -> bool {
    let hex = |t: &[u8]| t.len() >= 2 && t[..2].iter().all(u8::is_ascii_hexdigit);
    s.match_indices('%').all(|(i, _)| hex(&s.as_bytes()[i + 1..]))
}

/// Whether a text is a mail address, "a@b" or "Name <a@b>".
pub fn mail_address(s: &str) -> bool {
    let s = s.trim();
    let address = match s.split_once('<') {
        Some((_, rest)) => match rest.strip_suffix('>') {
            Some(a) => a,
            None => return false,
        },
        None => s,
    };
    let Some((local, domain)) = address.rsplit_once('@') else { return false };
    let atom = |t: &str| {
        !t.is_empty()
            && t.chars()
                .all(|c| c.is_ascii_alphanumeric() || !c.is_ascii() || "!#$%&'*+-/=?^_`{|}~".contains(c))
    };
    let dotted = |t: &str| t.split('.').all(atom);
    let quoted = local.len() > 2 && local.starts_with('"') && local.ends_with('"');
    let literal = domain.starts_with('[') && domain.ends_with(']');
    (dotted(local) || quoted) && (dotted(domain) || literal)
}

/// One label, or labels and a top-level domain of letters.
pub(super) fn hostname(s: &str) -> bool {
    if s.len() > 255 || s.split('.').any(|p| p.len() > 63) {
        return false;
    }
    let Some((labels, top)) = s.rsplit_once('.') else {
        let mut chars = s.chars();
        let first = chars.next().is_some_and(word);
        let rest = chars.as_str();
        let rest = rest.strip_prefix('-').unwrap_or(rest);
        return first && rest.chars().count() <= 62 && rest.chars().all(word);
    };
    let label = |l: &str| {
        let inner = |c: char| c == '-' || word(c);
        l.chars().next().is_some_and(word) && l.chars().next_back().is_some_and(word) && l.chars().all(inner)
    };
    let letters = top.chars().count();
    labels.split('.').all(label) && (2..=63).contains(&letters) && top.chars().all(char::is_alphabetic)
}

/// A letter, an ASCII digit or a symbol.
fn word(c: char) -> bool {
    static SYMBOL: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^[\p{S}\p{L}]$").ok());
    if c.is_ascii_alphanumeric() {
        return true;
    }
    SYMBOL.as_ref().is_some_and(|r| r.is_match(c.encode_utf8(&mut [0; 4])))
}

/// 6, 8 or 20 bytes, grouped by colons, dashes, or (in pairs) dots.
pub(super) fn mac(s: &str) -> bool {
    let hex = |t: &str, n: usize| t.len() == n && t.bytes().all(|b| b.is_ascii_hexdigit());
    let grouped = |sep: char, width: usize| {
        let parts: Vec<&str> = s.split(sep).collect();
        [6, 8, 20].contains(&(parts.len() * width / 2)) && parts.iter().all(|p| hex(p, width))
    };
    grouped(':', 2) || grouped('-', 2) || grouped('.', 4)
}

/// Five groups of hexadecimal digits with optional dashes; versions 4 and 5 fix the variant too.
pub(super) fn uuid(s: &str, version: Option<char>) -> bool {
    let mut rest = s;
    let mut digits = String::with_capacity(32);
    for (i, n) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if i > 0 {
            rest = rest.strip_prefix('-').unwrap_or(rest);
        }
        let Some(group) = rest.get(..n) else { return false };
        digits.push_str(group);
        rest = &rest[n..];
    }
    let variant = || digits.as_bytes().get(16).is_some_and(|b| b"89abAB".contains(b));
    rest.is_empty()
        && digits.bytes().all(|b| b.is_ascii_hexdigit())
        && version.is_none_or(|v| digits.chars().nth(12) == Some(v) && (v == '3' || variant()))
}

/// A DNS label without length limit.
pub(super) fn short_name(s: &str) -> bool {
    let alnum = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    s.bytes().next().is_some_and(alnum)
        && s.bytes().next_back().is_some_and(alnum)
        && s.bytes().all(|b| alnum(b) || b == b'-')
}
