//! Timestamps and durations: parsing, formatting and components. Timestamps lie in the years 1 to 9999, as protobuf's do.

use super::{Called, Native, no_overload};
use crate::{error::Error, value::Value};
use jiff::{
    Timestamp,
    civil::{Date, DateTime},
    tz::{Offset, TimeZone},
};

pub(super) const DECLARATIONS: &str = "\
getFullYear timestamp_to_year .timestamp int
getFullYear timestamp_to_year_with_tz .timestamp,string int
getMonth timestamp_to_month .timestamp int
getMonth timestamp_to_month_with_tz .timestamp,string int
getDayOfYear timestamp_to_day_of_year .timestamp int
getDayOfYear timestamp_to_day_of_year_with_tz .timestamp,string int
getDayOfMonth timestamp_to_day_of_month .timestamp int
getDayOfMonth timestamp_to_day_of_month_with_tz .timestamp,string int
getDate timestamp_to_day_of_month_1_based .timestamp int
getDate timestamp_to_day_of_month_1_based_with_tz .timestamp,string int
getDayOfWeek timestamp_to_day_of_week .timestamp int
getDayOfWeek timestamp_to_day_of_week_with_tz .timestamp,string int
getHours timestamp_to_hours .timestamp int
getHours timestamp_to_hours_with_tz .timestamp,string int
getHours duration_to_hours .duration int
getMinutes timestamp_to_minutes .timestamp int
getMinutes timestamp_to_minutes_with_tz .timestamp,string int
getMinutes duration_to_minutes .duration int
getSeconds timestamp_to_seconds .timestamp int
getSeconds timestamp_to_seconds_tz .timestamp,string int
getSeconds duration_to_seconds .duration int
getMilliseconds timestamp_to_milliseconds .timestamp int
getMilliseconds timestamp_to_milliseconds_with_tz .timestamp,string int
getMilliseconds duration_to_milliseconds .duration int
";

pub(super) fn native(name: &str) -> Option<Native> {
    Some(match name {
        "getFullYear" => |args| part(args, |t| i64::from(t.year()), None),
        "getMonth" => |args| part(args, |t| i64::from(t.month()) - 1, None),
        "getDayOfYear" => |args| part(args, |t| i64::from(t.day_of_year()) - 1, None),
        "getDayOfMonth" => |args| part(args, |t| i64::from(t.day()) - 1, None),
        "getDate" => |args| part(args, |t| i64::from(t.day()), None),
        "getDayOfWeek" => |args| part(args, |t| i64::from(t.weekday().to_sunday_zero_offset()), None),
        "getHours" => |args| part(args, |t| i64::from(t.hour()), Some(3_600_000_000_000)),
        "getMinutes" => |args| part(args, |t| i64::from(t.minute()), Some(60_000_000_000)),
        "getSeconds" => |args| part(args, |t| i64::from(t.second()), Some(1_000_000_000)),
        "getMilliseconds" => |args| part(args, |t| i64::from(t.millisecond()), Some(1_000_000)),
        _ => return None,
    })
}

/// A part of a moment in its time zone, or a span in units of so many nanoseconds.
fn part<'a>(args: &[Value<'a>], of: fn(DateTime) -> i64, unit: Option<i64>) -> Called<'a> {
    match (args, unit) {
        ([Value::Duration(d)], Some(unit)) => Ok(Value::Int(d / unit)),
        ([Value::Timestamp(t)], _) => Ok(Value::Int(of(t.to_zoned(TimeZone::UTC).datetime()))),
        ([Value::Timestamp(t), Value::String(zone)], _) => {
            Ok(Value::Int(of(t.to_zoned(time_zone(zone)?).datetime())))
        }
        _ => no_overload(),
    }
}

/// A name of the time zone database, or hours and minutes east of Greenwich.
fn time_zone(name: &str) -> Result<TimeZone, Error> {
    let unknown = || Error::eval(format!("unknown time zone {name}"));
    let Some((hours, minutes)) = name.split_once(':') else {
        return if name.is_empty() { Ok(TimeZone::UTC) } else { TimeZone::get(name).map_err(|_| unknown()) };
    };
    let (h, m) =
        (hours.parse::<i32>().map_err(|_| unknown())?, minutes.parse::<i32>().map_err(|_| unknown())?);
    let minutes = h
        .checked_mul(60)
        .and_then(|h| if name.starts_with('-') { h.checked_sub(m) } else { h.checked_add(m) });
    let seconds = minutes.and_then(|m| m.checked_mul(60)).ok_or_else(unknown)?;
    Offset::from_seconds(seconds).map(TimeZone::fixed).map_err(|_| unknown())
}

/// Within the years 1 to 9999.
pub(crate) fn in_range(t: Timestamp) -> bool {
    (-62_135_596_800..=253_402_300_799).contains(&t.as_second())
}

/// Go's `time.ParseDuration`, in nanoseconds.
pub(crate) fn parse_duration(s: &str) -> Option<i64> {
    kaji_meta::duration::parse(s).ok()
}

/// OpenAPI's `duration`: Go's, or numbers with spelled-out units ("3 days").
pub(crate) fn parse_format_duration(s: &str) -> Option<i64> {
    if let Some(d) = parse_duration(s) {
        return Some(d);
    }
    let mut total: Option<i64> = None;
    let mut rest = s;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        rest = &rest[start..];
        let len = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let number: i64 = rest[..len].parse().ok()?;
        rest = rest[len..].trim_start();
        let len = rest.find(|c: char| !c.is_ascii_alphabetic() && c != 'µ').unwrap_or(rest.len());
        if let Some(unit) = unit(&rest[..len].to_lowercase()) {
            total = Some(total.unwrap_or_default().checked_add(number.checked_mul(unit)?)?);
        }
        rest = &rest[len..];
    }
    total
}

fn unit(name: &str) -> Option<i64> {
    const SECOND: i64 = 1_000_000_000;
    Some(match name {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" => SECOND,
        "m" => 60 * SECOND,
        "h" | "hr" => 3_600 * SECOND,
        "d" => 86_400 * SECOND,
        "w" | "wk" => 604_800 * SECOND,
        _ => {
            let prefixes = [
                ("nano", 1),
                ("micro", 1_000),
                ("milli", 1_000_000),
                ("sec", SECOND),
                ("min", 60 * SECOND),
                ("hour", 3_600 * SECOND),
                ("day", 86_400 * SECOND),
                ("week", 604_800 * SECOND),
            ];
            prefixes.into_iter().find(|(p, _)| name.starts_with(p))?.1
        }
    })
}

/// `2006-01-02`.
pub(crate) fn parse_date(s: &str) -> Option<Timestamp> {
    let date: Date = s.parse().ok().filter(|_| s.len() == 10)?;
    date.to_zoned(TimeZone::UTC).ok().map(|z| z.timestamp())
}

/// RFC 3339.
pub(crate) fn parse_date_time(s: &str) -> Option<Timestamp> {
    let bytes = s.as_bytes();
    if bytes.len() < 20 || !matches!(bytes[10], b'T' | b't') {
        return None;
    }
    // jiff takes more than RFC 3339: offsets without colon, names of zones, and no seconds.
    let zone = s.get(19..)?.find(['Z', 'z', '+', '-'])? + 19;
    let offset_fits = matches!(&s[zone..], "Z" | "z") || (s.len() == zone + 6 && bytes[zone + 3] == b':');
    if !offset_fits || bytes[13] != b':' || bytes[16] != b':' {
        return None;
    }
    s.parse().ok()
}

/// Go's RFC3339Nano in UTC.
pub(crate) fn timestamp_text(t: Timestamp) -> String {
    t.to_string()
}

/// Seconds, with as many digits as needed.
pub(crate) fn duration_text(nanoseconds: i64) -> String {
    #[allow(clippy::cast_precision_loss, reason = "upstream's text comes of a double, too")]
    let seconds = (nanoseconds / 1_000_000_000) as f64 + (nanoseconds % 1_000_000_000) as f64 / 1e9;
    format!("{seconds}s")
}
