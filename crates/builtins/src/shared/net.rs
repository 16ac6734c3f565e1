//! IP addresses and CIDRs as Kubernetes checks them: Go's historic lenient parser for old fields, plus the stricter
//! rules that new values must meet (KEP-4858).

use kaji_meta::{
    field::{Error, ErrorList, Path},
    text::quote,
    validation,
};
pub use validation::{parse_ip_sloppy, validate_cidr as check_cidr, validate_ip as check_ip};

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    /// The address as written, host bits included.
    pub address: IpAddr,
    /// The prefix length in bits.
    pub bits: u8,
}

impl Cidr {
    /// Parses `address/bits`, the address as [`parse_ip_sloppy`] does and the length with leading zeros allowed.
    pub fn parse_sloppy(text: &str) -> Option<Cidr> {
        let (ip, bits) = text.split_once('/')?;
        let address = parse_ip_sloppy(ip)?;
        if bits.is_empty() || bits.len() > 6 || !bits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let bits: u32 = bits.parse().ok()?;
        let max = if ip.contains(':') { 128 } else { 32 };
        if bits > max {
            return None;
        }
        // ::ffff:a.b.c.d/n is an IPv4 block of n - 96 bits.
        let bits = if max == 128 && address.is_ipv4() { bits.saturating_sub(96) } else { bits };
        Some(Cidr { address, bits: bits as u8 })
    }

    /// The block's number of address bits.
    pub fn width(&self) -> u32 {
        if self.address.is_ipv4() { 32 } else { 128 }
    }

    /// The first address of the block as a number.
    pub fn base(&self) -> u128 {
        ip_number(self.address) & self.mask()
    }

    fn mask(&self) -> u128 {
        let width = self.width();
        let all = if width == 32 { u128::from(u32::MAX) } else { u128::MAX };
        let host = width - u32::from(self.bits);
        if host >= 128 { 0 } else { (all >> host) << host }
    }

    /// The last address of the block as a number.
    pub fn last(&self) -> u128 {
        let all = if self.width() == 32 { u128::from(u32::MAX) } else { u128::MAX };
        self.base() | (all & !self.mask())
    }

    /// Whether an address lies in the block.
    pub fn contains(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.address.is_ipv4() && ip_number(ip) & self.mask() == self.base()
    }

    /// Whether another block lies in this one.
    pub fn contains_block(&self, other: &Cidr) -> bool {
        self.bits <= other.bits && self.contains(other.address)
    }

    /// Whether two blocks share addresses.
    pub fn overlaps(&self, other: &Cidr) -> bool {
        self.contains_block(other) || other.contains_block(self)
    }

    /// The block in canonical form, host bits cleared.
    pub fn canonical(&self) -> String {
        format!("{}/{}", number_ip(self.base(), self.address.is_ipv4()), self.bits)
    }
}

/// An address as a number.
pub fn ip_number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    }
}

/// A number as an address of a family.
pub fn number_ip(n: u128, v4: bool) -> IpAddr {
    if v4 { IpAddr::V4(Ipv4Addr::from(n as u32)) } else { IpAddr::V6(Ipv6Addr::from(n)) }
}

/// Whether the text is an IPv6 address.
pub fn is_ipv6(text: &str) -> bool {
    parse_ip_sloppy(text).is_some_and(|ip| ip.is_ipv6())
}

/// Whether the text is an IPv4 address.
pub fn is_ipv4(text: &str) -> bool {
    parse_ip_sloppy(text).is_some_and(|ip| ip.is_ipv4())
}

fn is_mapped(text: &str) -> bool {
    text.parse::<Ipv6Addr>().is_ok_and(|v6| v6.to_ipv4_mapped().is_some())
}

/// Checks an address in a field that accepted sloppy ones before; values already stored stay acceptable.
pub fn check_legacy_ip(path: &Path, value: &str, known: &[&str]) -> ErrorList {
    validation::validate_ip_legacy(path, value, true, known)
}

/// Checks a CIDR in a field that accepted sloppy ones before; values already stored stay acceptable.
pub fn check_legacy_cidr(path: &Path, value: &str, known: &[&str]) -> ErrorList {
    validation::validate_cidr_legacy(path, value, true, known)
}

/// Checks the address of a network interface, which keeps its host bits (`10.9.8.7/24`). Upstream's `IsValidInterfaceAddress`.
pub fn check_interface_address(path: &Path, value: &str) -> ErrorList {
    let Some(Cidr { address, bits }) = Cidr::parse_sloppy(value) else {
        let text = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
        return vec![Error::invalid(path, value, text)];
    };
    let canonical = format!("{address}/{bits}");
    if canonical == value {
        return vec![];
    }
    vec![Error::invalid(path, value, format!("must be in canonical form ({})", quote(&canonical)))]
}

/// Checks that an address may be an endpoint's: not unspecified, loopback or link-local.
pub fn check_endpoint_ip(path: &Path, value: &str) -> ErrorList {
    let Some(ip) = parse_ip_sloppy(value) else {
        return vec![Error::invalid(path, value, "must be a valid IP address")];
    };
    let mut errors = vec![];
    let mut bad = |text: &str| errors.push(Error::invalid(path, value, text));
    if ip.is_unspecified() {
        bad(&format!("may not be unspecified ({value})"));
    }
    if ip.is_loopback() {
        bad("may not be in the loopback range (127.0.0.0/8, ::1/128)");
    }
    let (unicast, multicast) = match ip {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(v6) => (v6.segments()[0] & 0xffc0 == 0xfe80, v6.segments()[0] & 0xff0f == 0xff02),
    };
    if unicast {
        bad("may not be in the link-local range (169.254.0.0/16, fe80::/10)");
    }
    if multicast {
        bad("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)");
    }
    errors
}

/// Warnings about an address that is accepted but not in its canonical form.
pub fn ip_warnings(path: &Path, value: &str) -> Vec<String> {
    let Some(ip) = parse_ip_sloppy(value) else { return vec![] };
    if value.parse::<IpAddr>().is_err() || is_mapped(value) {
        return vec![format!(
            "{path}: non-standard IP address {value:?} is invalid: use {:?}",
            ip.to_string()
        )];
    }
    if ip.is_ipv6() && ip.to_string() != value {
        let canonical = ip.to_string();
        return vec![format!(
            "{path}: IPv6 address {value:?} should be in RFC 5952 canonical format ({canonical:?})"
        )];
    }
    vec![]
}

/// Warnings about a CIDR that is accepted but ambiguous or not in its canonical form.
pub fn cidr_warnings(path: &Path, value: &str) -> Vec<String> {
    let Some(cidr) = Cidr::parse_sloppy(value) else { return vec![] };
    let canonical = cidr.canonical();
    let mut warnings = vec![];
    if ip_number(cidr.address) != cidr.base() {
        let single = format!("{}/{}", cidr.address, cidr.width());
        warnings.push(format!(
            "{path}: CIDR value {value:?} is ambiguous in this context (should be {canonical:?} or {single:?}?)"
        ));
    }
    let (ip, bits) = value.split_once('/').unwrap_or_default();
    if ip.parse::<IpAddr>().is_err() || (bits != "0" && bits.starts_with('0')) || is_mapped(ip) {
        warnings.push(format!("{path}: non-standard CIDR value {value:?} is invalid: use {canonical:?}"));
    } else if warnings.is_empty() && cidr.address.is_ipv6() && canonical != value {
        warnings.push(format!(
            "{path}: IPv6 CIDR value {value:?} should be in RFC 5952 canonical format ({canonical:?})"
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_addresses_with_leading_zeros() {
        assert_eq!(parse_ip_sloppy("010.0.0.01").map(|i| i.to_string()), Some("10.0.0.1".into()));
        assert_eq!(parse_ip_sloppy("::ffff:1.2.3.4").map(|i| i.to_string()), Some("1.2.3.4".into()));
        assert_eq!(parse_ip_sloppy("1.2.3"), None);
        assert_eq!(parse_ip_sloppy("1.2.3.256"), None);
        assert_eq!(parse_ip_sloppy("fe80::1%eth0"), None);
    }

    #[test]
    fn blocks_contain_their_addresses() {
        let c = Cidr::parse_sloppy("10.96.0.0/12").unwrap();
        assert!(c.contains("10.111.255.255".parse().unwrap()));
        assert!(!c.contains("10.112.0.0".parse().unwrap()));
        assert_eq!(number_ip(c.last(), true).to_string(), "10.111.255.255");
        assert_eq!(Cidr::parse_sloppy("10.97.1.1/12").unwrap().canonical(), "10.96.0.0/12");
        assert!(c.overlaps(&Cidr::parse_sloppy("10.100.0.0/16").unwrap()));
        assert!(!c.overlaps(&Cidr::parse_sloppy("fd00::/64").unwrap()));
        assert_eq!(Cidr::parse_sloppy("0.0.0.0/0").unwrap().canonical(), "0.0.0.0/0");
    }

    #[test]
    fn rejects_addresses_that_are_not_canonical() {
        let p = Path::new("ip");
        let show = |e: ErrorList| e.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        expect_test::expect![[r#"
            ip: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)
            ip: Invalid value: "01.2.3.4": must not have leading 0s
            ip: Invalid value: "::FFFF:1.2.3.4": must not be an IPv4-mapped IPv6 address
            ip: Invalid value: "FD00::1": must be in canonical form ("fd00::1")
            ip: Invalid value: "10.0.0.1/8": must not have bits set beyond the prefix length"#]]
        .assert_eq(
            &[
                show(check_ip(&p, "x")),
                show(check_ip(&p, "01.2.3.4")),
                show(check_ip(&p, "::FFFF:1.2.3.4")),
                show(check_ip(&p, "FD00::1")),
                show(check_cidr(&p, "10.0.0.1/8")),
            ]
            .join("\n"),
        );
        assert!(check_legacy_ip(&p, "01.2.3.4", &["01.2.3.4"]).is_empty());
        assert!(!check_endpoint_ip(&p, "127.0.0.1").is_empty());
    }
}
