//! Ranges of ports, as upstream's flags spell them.
//!
//! Source: `util/net/port_range.go` of apimachinery.

use std::ops::RangeInclusive;

/// Reads `30000-32767`, `30000+2767` or `30000`.
///
/// # Errors
/// For what is no range of ports.
pub fn parse(text: &str) -> Result<RangeInclusive<u16>, String> {
    let text = text.trim();
    let port = |text: &str| {
        text.parse::<u32>().map_err(|_| format!("unable to parse port range {text:?}: it must be a number"))
    };
    let (first, last) = match (text.split_once('+'), text.split_once('-')) {
        (Some((base, more)), _) => (port(base)?, port(base)?.saturating_add(port(more)?)),
        (None, Some((first, last))) => (port(first)?, port(last)?),
        (None, None) => (port(text)?, port(text)?),
    };
    if last < first {
        return Err(format!("end port cannot be less than start port: {text}"));
    }
    match (u16::try_from(first), u16::try_from(last)) {
        (Ok(first), Ok(last)) if first > 0 => Ok(first..=last),
        _ => Err(format!("the port range must be between 1 and 65535: {text}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_ranges_of_ports() {
        assert_eq!(parse("30000-32767"), Ok(30000..=32767));
        assert_eq!(parse("30000+10"), Ok(30000..=30010));
        assert_eq!(parse("80"), Ok(80..=80));
        for bad in ["", "a-b", "2-1", "0-10", "1-65536", "65535+1", "4294967295+1"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
