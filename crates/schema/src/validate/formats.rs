//! The string formats that custom resource schemas may use, checked as upstream's format registry does.

use std::net::Ipv6Addr;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use crate::schema::{Format, Type};

mod text;

pub use text::{mail_address, request_uri};

/// The format called `name` on a value of type `ty`; [`Format::None`] where it is unknown or does not belong to the type.
/// Dashes do not matter ("date-time" is "datetime").
pub(crate) fn parse(name: &str, ty: Type) -> Format {
    let format =
        NAMES.iter().find(|(_, n)| n.replace('-', "") == name.replace('-', "")).map_or(Format::None, |f| f.0);
    let numeric = |f| matches!(f, Format::Int32 | Format::Int64 | Format::Float | Format::Double);
    let belongs = match ty {
        Type::Integer => matches!(format, Format::Int32 | Format::Int64),
        Type::Number => matches!(format, Format::Float | Format::Double),
        Type::String | Type::Any | Type::IntOrString => !numeric(format),
        _ => false,
    };
    if belongs { format } else { Format::None }
}

/// Whether a value of `type: ty` may have this format, as `GetUnrecognizedFormats` of upstream has it.
pub(crate) fn is_recognized(ty: &str, format: &str) -> bool {
    let ty = match ty {
        "" | "string" => Type::String,
        "integer" => Type::Integer,
        "number" => Type::Number,
        _ => return false,
    };
    parse(format, ty) != Format::None
}

/// The formats in an OpenAPI v3 schema of a definition that are not recognized, hence never checked.
pub fn unrecognized(schema: &Value, out: &mut Vec<String>) {
    let text = |key: &str| schema.get(key).and_then(Value::as_str).unwrap_or_default();
    if !text("format").is_empty() && !is_recognized(text("type"), text("format")) {
        out.push(text("format").to_owned());
    }
    let part = |key: &str| schema.get(key).unwrap_or(&Value::Null);
    let single = ["items", "not", "additionalProperties", "additionalItems"];
    let lists = ["items", "allOf", "anyOf", "oneOf"];
    let maps = ["properties", "patternProperties", "definitions", "dependencies"];
    let parts = single.iter().map(|k| part(k)).chain(
        lists
            .iter()
            .flat_map(|k| part(k).as_array().into_iter().flatten())
            .chain(maps.iter().flat_map(|k| part(k).as_object().into_iter().flat_map(|m| m.values()))),
    );
    parts.filter(|p| p.is_object()).for_each(|p| unrecognized(p, out));
}

/// The name of a format; none for [`Format::None`].
pub(crate) fn name(format: Format) -> Option<&'static str> {
    NAMES.iter().find(|(f, _)| *f == format).map(|(_, n)| *n)
}

const NAMES: [(Format, &str); 30] = [
    (Format::Int32, "int32"),
    (Format::Int64, "int64"),
    (Format::Float, "float"),
    (Format::Double, "double"),
    (Format::Byte, "byte"),
    (Format::DateTime, "date-time"),
    (Format::Date, "date"),
    (Format::Duration, "duration"),
    (Format::BsonObjectId, "bsonobjectid"),
    (Format::Uri, "uri"),
    (Format::Email, "email"),
    (Format::Hostname, "hostname"),
    (Format::Ipv4, "ipv4"),
    (Format::Ipv6, "ipv6"),
    (Format::Cidr, "cidr"),
    (Format::Mac, "mac"),
    (Format::Uuid, "uuid"),
    (Format::Uuid3, "uuid3"),
    (Format::Uuid4, "uuid4"),
    (Format::Uuid5, "uuid5"),
    (Format::Isbn, "isbn"),
    (Format::Isbn10, "isbn10"),
    (Format::Isbn13, "isbn13"),
    (Format::CreditCard, "creditcard"),
    (Format::Ssn, "ssn"),
    (Format::HexColor, "hexcolor"),
    (Format::RgbColor, "rgbcolor"),
    (Format::Password, "password"),
    (Format::K8sShortName, "k8s-short-name"),
    (Format::K8sLongName, "k8s-long-name"),
];

/// Whether `s` is of the given format. Formats of numbers accept any text: they are not checked.
pub(crate) fn is_valid(format: Format, s: &str) -> bool {
    match format {
        Format::Byte => matches(&BYTE, s),
        Format::DateTime => text::date_time(s),
        Format::Date => text::date(s),
        Format::Duration => text::duration(s),
        Format::BsonObjectId => s.len() == 24 && s.bytes().all(|b| b.is_ascii_hexdigit()),
        Format::Uri => text::request_uri(s),
        Format::Email => text::mail_address(s),
        Format::Hostname => text::hostname(s),
        Format::Ipv4 => s.contains('.') && ip(s).is_some(),
        Format::Ipv6 => s.contains(':') && s.parse::<Ipv6Addr>().is_ok(),
        Format::Cidr => cidr(s),
        Format::Mac => text::mac(s),
        Format::Uuid => text::uuid(s, None),
        Format::Uuid3 => text::uuid(s, Some('3')),
        Format::Uuid4 => text::uuid(s, Some('4')),
        Format::Uuid5 => text::uuid(s, Some('5')),
        Format::Isbn => isbn10(s) || isbn13(s),
        Format::Isbn10 => isbn10(s),
        Format::Isbn13 => isbn13(s),
        Format::CreditCard => credit_card(s),
        Format::Ssn => s.len() == 11 && matches(&SSN, s),
        Format::HexColor => matches(&HEX_COLOR, s),
        Format::RgbColor => matches(&RGB_COLOR, s),
        Format::K8sShortName => s.len() <= 63 && text::short_name(s),
        Format::K8sLongName => s.len() <= 253 && s.split('.').all(text::short_name),
        Format::None | Format::Int32 | Format::Int64 | Format::Float | Format::Double | Format::Password => {
            true
        }
    }
}

type Rx = LazyLock<Option<Regex>>;

/// Constant patterns compile; if one did not, nothing would match it.
fn matches(rx: &Rx, s: &str) -> bool {
    rx.as_ref().is_some_and(|r| r.is_match(s))
}

static BYTE: Rx = LazyLock::new(|| {
    Regex::new("^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})$").ok()
});
static SSN: Rx = LazyLock::new(|| Regex::new("^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$").ok());
static HEX_COLOR: Rx = LazyLock::new(|| Regex::new("^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$").ok());
static RGB_COLOR: Rx = LazyLock::new(|| {
    let n = "[ \t\r\n\u{c}]*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])[ \t\r\n\u{c}]*";
    Regex::new(&format!(r"^rgb\({n},{n},{n}\)$")).ok()
});
static CARD: Rx = LazyLock::new(|| {
    Regex::new(concat!(
        "^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|(222[1-9]|22[3-9][0-9]|2[3-6][0-9]{2}|27[01][0-9]|2720)[0-9]{12}",
        "|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35[0-9]{3})[0-9]{11}",
        "|6[27][0-9]{14})$"
    ))
    .ok()
});

/// An address of either family; IPv4 may have leading zeros, which older Go accepted.
fn ip(s: &str) -> Option<u8> {
    if s.contains(':') {
        return s.parse::<Ipv6Addr>().ok().map(|_| 128);
    }
    let (mut octets, mut parts) = (0, 0);
    for part in s.split('.') {
        let digits = !part.is_empty() && part.len() <= 10 && part.bytes().all(|b| b.is_ascii_digit());
        octets += usize::from(digits && part.parse::<u8>().is_ok());
        parts += 1;
    }
    (octets == 4 && parts == 4).then_some(32)
}

fn cidr(s: &str) -> bool {
    let Some((address, bits)) = s.split_once('/') else { return false };
    let digits = !bits.is_empty() && bits.len() <= 3 && bits.bytes().all(|b| b.is_ascii_digit());
    match (ip(address), bits.parse::<u16>()) {
        (Some(width), Ok(bits)) => digits && bits <= u16::from(width),
        _ => false,
    }
}

fn plain(s: &str) -> String {
    s.chars().filter(|c| !c.is_whitespace() && *c != '-').collect()
}

fn isbn10(s: &str) -> bool {
    let s = plain(s);
    let b = s.as_bytes();
    if b.len() != 10 || !b[..9].iter().all(u8::is_ascii_digit) || !(b[9].is_ascii_digit() || b[9] == b'X') {
        return false;
    }
    let value = |c: u8| if c == b'X' { 10 } else { u32::from(c - b'0') };
    b.iter().zip(1u32..).map(|(c, i)| i * value(*c)).sum::<u32>() % 11 == 0
}

fn isbn13(s: &str) -> bool {
    let s = plain(s);
    let b = s.as_bytes();
    b.len() == 13
        && b.iter().all(u8::is_ascii_digit)
        && b.iter().zip([1u32, 3].iter().cycle()).map(|(c, f)| f * u32::from(c - b'0')).sum::<u32>() % 10 == 0
}

fn credit_card(s: &str) -> bool {
    let digits: String = s.chars().filter(char::is_ascii_digit).collect();
    if !matches(&CARD, &digits) {
        return false;
    }
    let sum: u32 = digits
        .bytes()
        .rev()
        .enumerate()
        .map(|(i, c)| {
            let d = u32::from(c - b'0') * if i % 2 == 1 { 2 } else { 1 };
            if d > 9 { d - 9 } else { d }
        })
        .sum();
    sum.is_multiple_of(10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_and_rejects_formats() {
        let good: &[(&str, &[&str])] = &[
            ("date-time", &["2018-05-14T10:20:30Z", "2018-05-14t10:20:30.5+02:00"]),
            ("date", &["2018-05-14"]),
            ("duration", &["1h30m", "3 days", "-1.5h", "0"]),
            ("ipv4", &["1.2.3.4", "010.0.0.1"]),
            ("ipv6", &["::1"]),
            ("cidr", &["10.0.0.0/8", "::/0"]),
            ("mac", &["00:11:22:33:44:55", "0011.2233.4455"]),
            ("uuid", &["123e4567-e89b-12d3-a456-426614174000", "123E4567E89B12D3A456426614174000"]),
            ("uuid4", &["123e4567-e89b-42d3-a456-426614174000"]),
            ("uri", &["http://x/y?z", "/abs", "mailto:a@b"]),
            ("email", &["a@b.c", "Name <a@b>"]),
            ("hostname", &["localhost", "www.example.com"]),
            ("byte", &["aGVsbG8="]),
            ("isbn", &["0321751043", "978-0321751041"]),
            ("creditcard", &["4111-1111-1111-1111"]),
            ("ssn", &["111-11-1111"]),
            ("hexcolor", &["#fff"]),
            ("rgbcolor", &["rgb(1, 2,255)"]),
            ("bsonobjectid", &["507f1f77bcf86cd799439011"]),
            ("k8s-short-name", &["a-b"]),
            ("k8s-long-name", &["a-b.c"]),
        ];
        for (name, values) in good {
            let format = parse(name, Type::String);
            assert_ne!(format, Format::None, "{name}");
            for v in *values {
                assert!(is_valid(format, v), "{name} {v}");
            }
            assert!(!is_valid(format, "!! no !!"), "{name}");
        }
        let bad = [
            ("date-time", "2018-05-14"),
            ("date-time", "2018-13-14T10:20:30Z"),
            ("ipv4", "1.2.3"),
            ("ipv4", "1.2.3.256"),
            ("cidr", "10.0.0.0/33"),
            ("uuid4", "123e4567-e89b-12d3-a456-426614174000"),
            ("uri", "relative"),
            ("email", "a@"),
            ("byte", ""),
            ("isbn", "0321751044"),
        ];
        for (name, v) in bad {
            assert!(!is_valid(parse(name, Type::String), v), "{name} {v}");
        }
        assert_eq!(parse("int32", Type::String), Format::None);
        assert_eq!(parse("int32", Type::Integer), Format::Int32);
        assert_eq!(parse("datetime", Type::String), Format::DateTime);
    }
}
