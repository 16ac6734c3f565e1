//! IP addresses and CIDRs.
//!
//! "Sloppy" parsing accepts what old fields accept: leading zeros in decimal octets, and IPv4 in IPv6 form. New fields
//! take canonical text only.

use crate::field::{Error, ErrorList, Path};
use crate::text::quote;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

fn ipv4_sloppy(s: &str) -> Option<Ipv4Addr> {
    let mut octets = [0u8; 4];
    let mut parts = s.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        let digits = part.trim_start_matches('0');
        if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) || digits.len() > 3 {
            return None;
        }
        *octet = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    }
    parts.next().is_none().then(|| Ipv4Addr::from(octets))
}

fn ipv6_sloppy(s: &str) -> Option<Ipv6Addr> {
    if let Ok(ip) = s.parse() {
        return Some(ip);
    }
    // Retry with leading zeros removed from each group and from an embedded IPv4 address.
    let (head, tail) = s.rsplit_once(':')?;
    let tail = if tail.contains('.') { ipv4_sloppy(tail)?.to_string() } else { tail.to_owned() };
    let trim = |g: &str| {
        let t = g.trim_start_matches('0');
        if t.is_empty() && !g.is_empty() { "0".to_owned() } else { t.to_owned() }
    };
    let groups: Vec<String> = head.split(':').map(trim).collect();
    let tail = if tail.contains('.') { tail } else { trim(&tail) };
    format!("{}:{tail}", groups.join(":")).parse().ok()
}

/// An address as old fields read it. IPv4 in IPv6 form comes back as IPv4, as it prints that way.
pub fn parse_ip_sloppy(s: &str) -> Option<IpAddr> {
    if s.contains(':') {
        let ip = ipv6_sloppy(s)?;
        Some(ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4))
    } else {
        ipv4_sloppy(s).map(IpAddr::V4)
    }
}

fn masked(ip: IpAddr, bits: u8) -> IpAddr {
    match ip {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from(u32::from(v4) & mask))
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from(u128::from(v6) & mask))
        }
    }
}

/// Address (as written, not masked) and prefix length, as old fields read a CIDR.
pub fn parse_cidr_sloppy(s: &str) -> Option<(IpAddr, u8)> {
    let (addr, bits) = s.split_once('/')?;
    let ip: IpAddr = if addr.contains(':') { ipv6_sloppy(addr)?.into() } else { ipv4_sloppy(addr)?.into() };
    if bits.is_empty() || bits.len() > 8 || !bits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let bits: u32 = bits.parse().ok()?;
    let max = if ip.is_ipv4() { 32 } else { 128 };
    (bits <= max).then_some((ip, u8::try_from(bits).ok()?))
}

fn is_mapped(s: &str) -> bool {
    s.parse::<Ipv6Addr>().is_ok_and(|ip| ip.to_ipv4_mapped().is_some())
}

fn ip_messages(value: &str, strict: bool, canonical: bool) -> Vec<String> {
    let Some(ip) = parse_ip_sloppy(value) else {
        return vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()];
    };
    if strict && value.parse::<IpAddr>().is_err() {
        return vec!["must not have leading 0s".to_owned()];
    }
    if strict && is_mapped(value) {
        return vec!["must not be an IPv4-mapped IPv6 address".to_owned()];
    }
    if canonical && ip.to_string() != value {
        return vec![format!("must be in canonical form ({})", quote(&ip.to_string()))];
    }
    Vec::new()
}

fn cidr_messages(value: &str, strict: bool, canonical: bool) -> Vec<String> {
    let Some((ip, bits)) = parse_cidr_sloppy(value) else {
        return vec!["must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)".to_owned()];
    };
    let (addr, len) = value.split_once('/').unwrap_or((value, ""));
    if strict && (addr.parse::<IpAddr>().is_err() || (len.len() > 1 && len.starts_with('0'))) {
        return vec!["must not have leading 0s in IP or prefix length".to_owned()];
    }
    if strict && is_mapped(addr) {
        return vec!["must not have an IPv4-mapped IPv6 address".to_owned()];
    }
    let network = masked(ip, bits);
    if strict && network != ip {
        return vec!["must not have bits set beyond the prefix length".to_owned()];
    }
    let text = format!("{network}/{bits}");
    if canonical && text != value {
        return vec![format!("must be in canonical form ({})", quote(&text))];
    }
    Vec::new()
}

fn errors(path: &Path, value: &str, messages: Vec<String>) -> ErrorList {
    messages.into_iter().map(|m| Error::invalid(path, value, m)).collect()
}

/// A canonical IP address.
pub fn is_valid_ip(value: &str) -> Vec<String> {
    ip_messages(value, true, true)
}

/// A canonical CIDR without bits beyond its prefix.
pub fn is_valid_cidr(value: &str) -> Vec<String> {
    cidr_messages(value, true, true)
}

/// As [`is_valid_ip`], as field errors.
pub fn validate_ip(path: &Path, value: &str) -> ErrorList {
    errors(path, value, is_valid_ip(value))
}

/// As [`is_valid_cidr`], as field errors.
pub fn validate_cidr(path: &Path, value: &str) -> ErrorList {
    errors(path, value, is_valid_cidr(value))
}

/// An IP in a field older than strict validation: need not be canonical. Values in `valid_old` pass unchecked.
pub fn validate_ip_legacy(path: &Path, value: &str, strict: bool, valid_old: &[&str]) -> ErrorList {
    if valid_old.contains(&value) {
        return Vec::new();
    }
    errors(path, value, ip_messages(value, strict, false))
}

/// A CIDR in a field older than strict validation: need not be canonical. Values in `valid_old` pass unchecked.
pub fn validate_cidr_legacy(path: &Path, value: &str, strict: bool, valid_old: &[&str]) -> ErrorList {
    if valid_old.contains(&value) {
        return Vec::new();
    }
    errors(path, value, cidr_messages(value, strict, false))
}

/// An interface address: a full address and a prefix length, in canonical form.
pub fn validate_interface_address(path: &Path, value: &str) -> ErrorList {
    let Some((ip, bits)) = parse_cidr_sloppy(value) else {
        let msg = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
        return vec![Error::invalid(path, value, msg)];
    };
    let canonical = match ip {
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => format!("{v4}/{}", if bits > 32 { i32::from(bits) - 96 } else { i32::from(bits) }),
            None => format!("{v6}/{bits}"),
        },
        IpAddr::V4(v4) => format!("{v4}/{bits}"),
    };
    if canonical == value {
        return Vec::new();
    }
    vec![Error::invalid(path, value, format!("must be in canonical form ({})", quote(&canonical)))]
}
