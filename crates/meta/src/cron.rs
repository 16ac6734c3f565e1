//! Cron schedules: five fields, one of the `@` shorthands, or `@every` and a duration, after an optional `TZ=` zone; and the
//! names of time zones. Source: Kubernetes' CronJob page, "Schedule syntax" (robfig/cron's standard parser).
//!
//! Invariants:
//! - One parser serves validation and the controller: a schedule that validation accepts has times.
//! - Errors have the parser's texts, which users see.
//! - Time passes evenly: where clocks are put back, what matches in the repeated time comes again; where they are put forward, what
//!   matches in the skipped time does not come.

use crate::{duration, text::quote};
use jiff::{
    Timestamp, ToSpan,
    civil::{Date, DateTime},
    tz::TimeZone,
};

/// A schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// The zone that the schedule names itself.
    zone: Option<TimeZone>,
    times: Times,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Times {
    Fields(Box<Fields>),
    /// So many seconds after the last time.
    Every(i64),
}

/// The values that match, one bit a value.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fields {
    minutes: u64,
    hours: u64,
    days: Field,
    months: u64,
    weekdays: Field,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Field {
    bits: u64,
    /// `*`, which leaves the choice to the other field of days.
    star: bool,
}

/// Bounds and names of the values of a field.
struct Bounds {
    min: u64,
    max: u64,
    names: &'static [&'static str],
}

const MINUTES: Bounds = Bounds { min: 0, max: 59, names: &[] };
const HOURS: Bounds = Bounds { min: 0, max: 23, names: &[] };
const DAYS: Bounds = Bounds { min: 1, max: 31, names: &[] };
const MONTHS: Bounds = Bounds {
    min: 1,
    max: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
};
const WEEKDAYS: Bounds = Bounds { min: 0, max: 6, names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"] };
/// Years that are searched for the next time.
const HORIZON: i16 = 5;

impl Schedule {
    /// Parses a schedule.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn parse(schedule: &str) -> Result<Self, String> {
        let mut spec = schedule;
        if spec.is_empty() {
            return Err("empty spec string".to_owned());
        }
        let mut zone = None;
        if spec.starts_with("TZ=") || spec.starts_with("CRON_TZ=") {
            let (prefix, rest) = spec.split_once(' ').ok_or_else(|| {
                "invalid schedule format: runtime error: slice bounds out of range [3:-1]".to_owned()
            })?;
            let name = prefix.split_once('=').map_or("", |(_, z)| z);
            zone = Some(time_zone(name).map_err(|e| format!("provided bad location {name}: {e}"))?);
            spec = rest.trim();
        }
        let times = match spec.strip_prefix("@every ") {
            Some(every) => {
                let nanos =
                    duration::parse(every).map_err(|e| format!("failed to parse duration {spec}: {e}"))?;
                Times::Every((nanos / 1_000_000_000).max(1))
            }
            None => Times::Fields(Box::new(Fields::parse(spec)?)),
        };
        Ok(Schedule { zone, times })
    }

    /// The first time after `after`. `zone` counts for schedules that name none.
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let fields = match &self.times {
            Times::Every(seconds) => {
                return Timestamp::from_second(after.as_second().checked_add(*seconds)?).ok();
            }
            Times::Fields(fields) => fields,
        };
        let zone = self.zone.as_ref().unwrap_or(zone);
        let mut from = Timestamp::from_second(after.as_second().checked_add(1)?).ok()?;
        let last = zone.to_datetime(from).year().checked_add(HORIZON)?;
        let horizon = Date::new(last.checked_add(1)?, 1, 1).ok()?.at(0, 0, 0, 0);
        let mut changes = zone.following(from);
        // Between two changes of the zone's offset, civil time and real time differ by a constant.
        loop {
            let offset = zone.to_offset(from);
            let change = changes.next().map(|change| change.timestamp());
            let end = change.map_or(horizon, |change| offset.to_datetime(change).min(horizon));
            if let Some(civil) = fields.first(offset.to_datetime(from), end) {
                return offset.to_timestamp(civil).ok();
            }
            from = change.filter(|change| zone.to_datetime(*change) < horizon)?;
        }
    }
}

impl Fields {
    fn parse(spec: &str) -> Result<Self, String> {
        let fields = match spec {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            _ if spec.starts_with('@') => return Err(format!("unrecognized descriptor: {spec}")),
            _ => spec,
        };
        let parts: Vec<&str> = fields.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = parts[..] else {
            return Err(format!("expected exactly 5 fields, found {}: [{}]", parts.len(), parts.join(" ")));
        };
        Ok(Fields {
            minutes: field(minutes, &MINUTES)?.bits,
            hours: field(hours, &HOURS)?.bits,
            days: field(days, &DAYS)?,
            months: field(months, &MONTHS)?.bits,
            weekdays: field(weekdays, &WEEKDAYS)?,
        })
    }

    /// The first match from `from` on and before `end`, in civil time.
    fn first(&self, from: DateTime, end: DateTime) -> Option<DateTime> {
        let has = |bits: u64, value: i8| bits & (1 << value) != 0;
        let mut at = from.with().second(0).subsec_nanosecond(0).build().ok()?;
        if at < from {
            at = at.checked_add(1.minute()).ok()?;
        }
        while at < end {
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

    /// Either kind of day matches, if both are given.
    fn day(&self, date: Date) -> bool {
        let month = self.days.bits & (1 << date.day()) != 0;
        let week = self.weekdays.bits & (1 << date.weekday().to_sunday_zero_offset()) != 0;
        if self.days.star || self.weekdays.star { month && week } else { month || week }
    }
}

fn field(text: &str, bounds: &Bounds) -> Result<Field, String> {
    let mut all = Field::default();
    for part in text.split(',').filter(|p| !p.is_empty()) {
        let one = range(part, bounds)?;
        all.bits |= one.bits;
        all.star |= one.star;
    }
    Ok(all)
}

fn number(text: &str) -> Result<u64, String> {
    let fail = |why: &str| {
        let quoted = quote(text);
        format!("failed to parse int from {text}: strconv.Atoi: parsing {quoted}: {why}")
    };
    let n: i128 = text.parse().map_err(|_| fail("invalid syntax"))?;
    match i64::try_from(n) {
        Ok(n) if n < 0 => Err(format!("negative number ({n}) not allowed: {text}")),
        Ok(n) => Ok(n.unsigned_abs()),
        Err(_) => Err(fail("value out of range")),
    }
}

fn range(expr: &str, b: &Bounds) -> Result<Field, String> {
    let named = |text: &str| match b.names.iter().position(|n| n.eq_ignore_ascii_case(text)) {
        Some(i) => Ok(b.min + i as u64),
        None => number(text),
    };
    let parts: Vec<&str> = expr.split('/').collect();
    let ends: Vec<&str> = parts.first().map_or(vec![], |p| p.split('-').collect());
    let (start, mut end) = match ends[..] {
        ["*" | "?", ..] => (b.min, b.max),
        [one] => (named(one)?, named(one)?),
        [low, high] => (named(low)?, named(high)?),
        _ => return Err(format!("too many hyphens: {expr}")),
    };
    let step = match parts[..] {
        [_] => 1,
        [_, step] => {
            let step = number(step)?;
            if ends.len() == 1 {
                end = b.max;
            }
            step
        }
        _ => return Err(format!("too many slashes: {expr}")),
    };
    if start < b.min {
        return Err(format!("beginning of range ({start}) below minimum ({}): {expr}", b.min));
    }
    if end > b.max {
        return Err(format!("end of range ({end}) above maximum ({}): {expr}", b.max));
    }
    if start > end {
        return Err(format!("beginning of range ({start}) beyond end of range ({end}): {expr}"));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {expr}"));
    }
    let width = usize::try_from(step).unwrap_or(usize::MAX);
    let bits = (start..=end).step_by(width).fold(0, |bits, i| bits | (1 << i));
    Ok(Field { bits, star: matches!(ends[..], ["*" | "?", ..]) && step == 1 })
}

/// The names of the IANA time zone database: per line an area, a colon, and the zones in it.
static ZONES: &str = include_str!("cron/zones.txt");

/// The time zone of a name, as Go's `time.LoadLocation` finds it; the names are the same on every machine.
///
/// # Errors
/// The name is unknown.
pub fn time_zone(name: &str) -> Result<TimeZone, String> {
    let unknown = || format!("unknown time zone {name}");
    match name {
        "" | "UTC" => return Ok(TimeZone::UTC),
        "Local" => return Ok(TimeZone::system()),
        _ => {}
    }
    let (area, zone) = name.split_once('/').unwrap_or(("", name));
    let listed = ZONES
        .lines()
        .filter_map(|l| l.split_once(": "))
        .any(|(a, zones)| a == area && zones.split(' ').any(|z| z == zone));
    match listed {
        true => TimeZone::get(name).map_err(|_| unknown()),
        false => Err(unknown()),
    }
}

#[cfg(test)]
mod tests;
