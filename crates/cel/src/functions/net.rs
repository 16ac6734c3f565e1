//! IP addresses and CIDR blocks.

use super::{Called, Native, no_overload};
use crate::{
    error::Error,
    value::{Ext, Value},
};
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

pub(super) const DECLARATIONS: &str = "\
ip string_to_ip string ip
ip cidr_ip .cidr ip
family ip_family .ip int
ip.isCanonical ip_is_canonical string bool
isUnspecified ip_is_unspecified .ip bool
isLoopback ip_is_loopback .ip bool
isLinkLocalMulticast ip_is_link_local_multicast .ip bool
isLinkLocalUnicast ip_is_link_local_unicast .ip bool
isGlobalUnicast ip_is_global_unicast .ip bool
isIP is_ip string bool
cidr string_to_cidr string cidr
containsIP cidr_contains_ip_string .cidr,string bool
containsIP cidr_contains_ip_ip .cidr,ip bool
containsCIDR cidr_contains_cidr_string .cidr,string bool
containsCIDR cidr_contains_cidr .cidr,cidr bool
prefixLength cidr_prefix_length .cidr int
masked cidr_masked .cidr cidr
isCIDR is_cidr string bool
";

pub(super) fn native(name: &str) -> Option<Native> {
    Some(match name {
        "ip" => |args| match args {
            [Value::String(s)] => Ok(Value::Ext(Ext::Ip(parse_ip(s)?))),
            [Value::Ext(Ext::Cidr(cidr))] => Ok(Value::Ext(Ext::Ip(cidr.ip))),
            _ => no_overload(),
        },
        "ip.isCanonical" => |args| match args {
            [Value::String(s)] => Ok(Value::Bool(parse_ip(s)?.to_string() == **s)),
            _ => no_overload(),
        },
        "family" => |args| ip(args, |ip| Value::Int(if ip.is_ipv4() { 4 } else { 6 })),
        "isUnspecified" => |args| ip(args, |ip| Value::Bool(ip.is_unspecified())),
        "isLoopback" => |args| ip(args, |ip| Value::Bool(ip.is_loopback())),
        "isLinkLocalMulticast" => |args| ip(args, |ip| Value::Bool(link_local_multicast(ip))),
        "isLinkLocalUnicast" => |args| ip(args, |ip| Value::Bool(link_local_unicast(ip))),
        "isGlobalUnicast" => |args| ip(args, |ip| Value::Bool(global_unicast(ip))),
        "isIP" => |args| match args {
            [Value::String(s)] => Ok(Value::Bool(parse_ip(s).is_ok())),
            _ => no_overload(),
        },
        "cidr" => |args| match args {
            [Value::String(s)] => Ok(Value::Ext(Ext::Cidr(Cidr::parse(s)?))),
            _ => no_overload(),
        },
        "containsIP" => |args| match args {
            [Value::Ext(Ext::Cidr(cidr)), Value::String(s)] => Ok(Value::Bool(cidr.contains(parse_ip(s)?))),
            [Value::Ext(Ext::Cidr(cidr)), Value::Ext(Ext::Ip(ip))] => Ok(Value::Bool(cidr.contains(*ip))),
            _ => no_overload(),
        },
        "containsCIDR" => |args| match args {
            [Value::Ext(Ext::Cidr(cidr)), Value::String(s)] => Ok(Value::Bool(cidr.covers(&Cidr::parse(s)?))),
            [Value::Ext(Ext::Cidr(cidr)), Value::Ext(Ext::Cidr(other))] => {
                Ok(Value::Bool(cidr.covers(other)))
            }
            _ => no_overload(),
        },
        "prefixLength" => |args| cidr(args, |c| Value::Int(c.prefix.into())),
        "masked" => |args| cidr(args, |c| Value::Ext(Ext::Cidr(c.masked()))),
        "isCIDR" => |args| match args {
            [Value::String(s)] => Ok(Value::Bool(Cidr::parse(s).is_ok())),
            _ => no_overload(),
        },
        _ => return None,
    })
}

fn ip<'a>(args: &[Value<'a>], of: fn(IpAddr) -> Value<'a>) -> Called<'a> {
    match args {
        [Value::Ext(Ext::Ip(ip))] => Ok(of(*ip)),
        _ => no_overload(),
    }
}

fn cidr<'a>(args: &[Value<'a>], of: fn(&Cidr) -> Value<'a>) -> Called<'a> {
    match args {
        [Value::Ext(Ext::Cidr(cidr))] => Ok(of(cidr)),
        _ => no_overload(),
    }
}

/// An address; zones and IPv4 in IPv6 are refused.
fn parse_ip(s: &str) -> Result<IpAddr, Error> {
    if let Some((address, _)) = s.split_once('%')
        && address.parse::<Ipv6Addr>().is_ok()
    {
        return Err(Error::eval(format!("IP address {s:?} with zone value is not allowed")));
    }
    let parsed: IpAddr = s.parse().map_err(|_| {
        let why = format!("ParseAddr({s:?}): unable to parse IP");
        Error::eval(format!("IP Address {s:?} parse error during conversion from string: {why}"))
    })?;
    if mapped(parsed) {
        return Err(Error::eval(format!("IPv4-mapped IPv6 address {s:?} is not allowed")));
    }
    Ok(parsed)
}

fn mapped(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some())
}

fn link_local_multicast(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.octets()[..3] == [224, 0, 0],
        IpAddr::V6(v6) => v6.segments()[0] & 0xff0f == 0xff02,
    }
}

fn link_local_unicast(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.segments()[0] & 0xffc0 == 0xfe80,
    }
}

fn global_unicast(ip: IpAddr) -> bool {
    let broadcast = ip == IpAddr::V4(Ipv4Addr::BROADCAST);
    !broadcast && !ip.is_unspecified() && !ip.is_loopback() && !ip.is_multicast() && !link_local_unicast(ip)
}

/// A block of addresses, as written: bits beyond the prefix are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    /// The address.
    pub ip: IpAddr,
    /// How many bits count.
    pub prefix: u8,
}

impl Cidr {
    fn parse(s: &str) -> Result<Cidr, Error> {
        let failed = |why: String| {
            let text = "network address parse error during conversion from string";
            Error::eval(format!("{text}: {text}: netip.ParsePrefix({s:?}): {why}"))
        };
        let Some((address, bits)) = s.rsplit_once('/') else { return Err(failed("no '/'".into())) };
        let ip: IpAddr =
            address.parse().map_err(|_| failed(format!("ParseAddr({address:?}): unable to parse IP")))?;
        let most = if ip.is_ipv4() { 32 } else { 128 };
        let plain = bits == "0" || bits.bytes().all(|b| b.is_ascii_digit()) && !bits.starts_with('0');
        let prefix = bits.parse::<u8>().ok().filter(|_| plain);
        let prefix = prefix.ok_or_else(|| failed(format!("bad bits after slash: {bits:?}")))?;
        if prefix > most {
            return Err(failed("prefix length out of range".into()));
        }
        if mapped(ip) {
            let text = "network address parse error during conversion from string";
            return Err(Error::eval(format!("{text}: IPv4-mapped IPv6 address {s:?} is not allowed")));
        }
        Ok(Cidr { ip, prefix })
    }

    /// The address with the bits beyond the prefix cleared.
    pub(crate) fn masked(&self) -> Cidr {
        let prefix = u32::from(self.prefix);
        let ip = match self.ip {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32 - prefix).unwrap_or(0);
                IpAddr::V4((u32::from(v4) & mask).into())
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128 - prefix).unwrap_or(0);
                IpAddr::V6((u128::from(v6) & mask).into())
            }
        };
        Cidr { ip, prefix: self.prefix }
    }

    fn contains(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.ip.is_ipv4() && Cidr { ip, prefix: self.prefix }.masked() == self.masked()
    }

    fn covers(&self, other: &Cidr) -> bool {
        self.prefix <= other.prefix && self.contains(other.ip)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}
