//! Cron schedules: five fields, or one of the `@` shorthands.
//! Source: Kubernetes' CronJob page, "Schedule syntax" (robfig/cron's standard parser).

use jiff::{
    Timestamp, ToSpan,
    civil::{Date, DateTime},
    tz::TimeZone,
};

/// When something is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Fields.
    Fields(Fields),
    /// So many seconds after the last time.
    Every(i64),
}

/// What matches, one bit a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields {
    minutes: u64,
    hours: u64,
    days: Field,
    months: u64,
    weekdays: Field,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Field {
    bits: u64,
    /// `*`, which leaves the choice to the other field of days.
    star: bool,
}

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
/// Years that are searched for the next time.
const HORIZON: i16 = 5;

impl Schedule {
    /// Reads a schedule.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.is_empty() {
            return Err("empty spec string".into());
        }
        let fields = match text {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            _ => text,
        };
        if let Some(every) = fields.strip_prefix("@every ") {
            let seconds = duration(every).ok_or_else(|| format!("failed to parse duration {text}"))?;
            return Ok(Schedule::Every(seconds.max(1)));
        }
        if fields.starts_with('@') {
            return Err(format!("unrecognized descriptor: {text}"));
        }
        let parts: Vec<&str> = fields.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = parts[..] else {
            return Err(format!("expected exactly 5 fields, found {}: [{}]", parts.len(), parts.join(" ")));
        };
        Ok(Schedule::Fields(Fields {
            minutes: field(minutes, 0, 59, &[])?.bits,
            hours: field(hours, 0, 23, &[])?.bits,
            days: field(days, 1, 31, &[])?,
            months: field(months, 1, 12, &MONTHS)?.bits,
            weekdays: field(weekdays, 0, 6, &WEEKDAYS)?,
        }))
    }

    /// The first time after `after`.
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        match self {
            Schedule::Every(seconds) => Timestamp::from_second(after.as_second() + seconds).ok(),
            Schedule::Fields(fields) => {
                let mut from = after.to_zoned(zone.clone()).datetime();
                loop {
                    let civil = fields.next(from)?;
                    let at = zone.to_ambiguous_timestamp(civil).compatible().ok()?;
                    // Where clocks are put back or forward the first match may lie behind.
                    if at > after {
                        return Some(at);
                    }
                    from = civil;
                }
            }
        }
    }
}

impl Fields {
    /// The first match after `from`, by the clock on the wall.
    fn next(&self, from: DateTime) -> Option<DateTime> {
        let has = |bits: u64, value: i8| bits & (1 << value) != 0;
        let mut at = from.with().second(0).subsec_nanosecond(0).build().ok()?.checked_add(1.minute()).ok()?;
        let last = from.year().checked_add(HORIZON)?;
        while at.year() <= last {
            let date = at.date();
            if !has(self.months, at.month()) {
                at = date.first_of_month().checked_add(1.month()).ok()?.at(0, 0, 0, 0);
            } else if !self.day(date) {
                at = date.tomorrow().ok()?.at(0, 0, 0, 0);
            } else if !has(self.hours, at.hour()) {
                at = date.at(at.hour(), 0, 0, 0).checked_add(1.hour()).ok()?;
            } else if !has(self.minutes, at.minute()) {
                at = at.checked_add(1.minute()).ok()?;
            } else {
                return Some(at);
            }
        }
        None
    }

    /// Either kind of day will do, if both are given.
    fn day(&self, date: Date) -> bool {
        let month = self.days.bits & (1 << date.day()) != 0;
        let week = self.weekdays.bits & (1 << date.weekday().to_sunday_zero_offset()) != 0;
        if self.days.star || self.weekdays.star { month && week } else { month || week }
    }
}

fn field(text: &str, min: u32, max: u32, names: &[&str]) -> Result<Field, String> {
    let mut all = Field { bits: 0, star: false };
    for part in text.split(',').filter(|p| !p.is_empty()) {
        let one = range(part, min, max, names)?;
        all.bits |= one.bits;
        all.star |= one.star;
    }
    if all.bits == 0 { Err(format!("empty field: {text:?}")) } else { Ok(all) }
}

fn range(text: &str, min: u32, max: u32, names: &[&str]) -> Result<Field, String> {
    let number = |t: &str| -> Result<u32, String> {
        let named = names.iter().position(|n| n.eq_ignore_ascii_case(t)).and_then(|i| u32::try_from(i).ok());
        match named {
            Some(i) => Ok(i + min),
            None => t.parse().map_err(|_| format!("failed to parse int from {t}: invalid syntax")),
        }
    };
    let (span, step) = match text.split_once('/') {
        None => (text, None),
        Some((span, step)) => (span, Some(number(step)?)),
    };
    let star = matches!(span, "*" | "?");
    let (first, last) = match span.split_once('-') {
        _ if star => (min, max),
        Some((first, last)) => (number(first)?, number(last)?),
        None => {
            let first = number(span)?;
            (first, if step.is_some() { max } else { first })
        }
    };
    if first < min {
        return Err(format!("beginning of range ({first}) below minimum ({min}): {text}"));
    }
    if last > max {
        return Err(format!("end of range ({last}) above maximum ({max}): {text}"));
    }
    if first > last {
        return Err(format!("beginning of range ({first}) beyond end of range ({last}): {text}"));
    }
    let width = step.unwrap_or(1);
    let step = usize::try_from(width).ok().filter(|s| *s > 0);
    let step = step.ok_or_else(|| format!("step of range should be a positive number: {text}"))?;
    let bits = (first..=last).step_by(step).fold(0u64, |bits, i| bits | (1 << i));
    Ok(Field { bits, star: star && width == 1 })
}

/// Whole seconds of a duration as Go writes it: `1h30m`.
fn duration(text: &str) -> Option<i64> {
    let (mut rest, mut total) = (text.trim(), 0.0);
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        rest = &rest[end..];
        let end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let unit = match &rest[..end] {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        total += number * unit;
        rest = &rest[end..];
    }
    // A duration beyond the range of clocks is cut off by the cast.
    #[allow(clippy::cast_possible_truncation)]
    let whole = total as i64;
    Some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(spec: &str, after: &str) -> String {
        let schedule = Schedule::parse(spec).unwrap();
        schedule.next(after.parse().unwrap(), &TimeZone::UTC).map_or("never".into(), |t| t.to_string())
    }

    #[test]
    fn next_times() {
        for (spec, after, expected) in [
            ("* * * * *", "2025-01-01T12:00:00Z", "2025-01-01T12:01:00Z"),
            ("*/15 * * * *", "2025-01-01T12:00:30Z", "2025-01-01T12:15:00Z"),
            ("5/20 * * * *", "2025-01-01T12:06:00Z", "2025-01-01T12:25:00Z"),
            ("0 9-17/4 * * MON-FRI", "2025-01-03T18:00:00Z", "2025-01-06T09:00:00Z"),
            ("0 0 29 feb *", "2025-01-01T00:00:00Z", "2028-02-29T00:00:00Z"),
            ("0 0 13 * 5", "2025-01-01T00:00:00Z", "2025-01-03T00:00:00Z"),
            ("0 0 13 * ?", "2025-01-01T00:00:00Z", "2025-01-13T00:00:00Z"),
            ("0 0 31 2 *", "2025-01-01T00:00:00Z", "never"),
            ("@hourly", "2025-01-01T23:59:59Z", "2025-01-02T00:00:00Z"),
            ("@yearly", "2025-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
            ("@every 1h30m", "2025-01-01T00:00:00Z", "2025-01-01T01:30:00Z"),
        ] {
            assert_eq!(next(spec, after), expected, "{spec}");
        }
    }

    #[test]
    fn zones() {
        let zone = TimeZone::fixed(jiff::tz::offset(2));
        let schedule = Schedule::parse("0 1 * * *").unwrap();
        let at = schedule.next("2025-01-01T12:00:00Z".parse().unwrap(), &zone).unwrap();
        assert_eq!(at.to_string(), "2025-01-01T23:00:00Z");
    }

    #[test]
    fn summer_time() {
        let zone = TimeZone::get("Europe/Berlin").unwrap();
        let schedule = Schedule::parse("0 9 * * *").unwrap();
        let after = |t: &str| schedule.next(t.parse().unwrap(), &zone).unwrap().to_string();
        assert_eq!(after("2025-01-01T12:00:00Z"), "2025-01-02T08:00:00Z");
        assert_eq!(after("2025-07-01T12:00:00Z"), "2025-07-02T07:00:00Z");
    }

    #[test]
    fn what_is_no_schedule() {
        for (spec, error) in [
            ("", "empty spec string"),
            ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("5-2 * * * *", "beginning of range (5) beyond end of range (2): 5-2"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("x * * * *", "failed to parse int from x: invalid syntax"),
            ("@sometimes", "unrecognized descriptor: @sometimes"),
        ] {
            assert_eq!(Schedule::parse(spec), Err(error.into()));
        }
    }
}
