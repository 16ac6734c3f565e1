//! Cron schedules, as the library that Kubernetes uses parses them; its error texts are what users see.

/// Bounds and names of one field of a schedule.
struct Bounds {
    min: u64,
    max: u64,
    names: &'static [&'static str],
}

const FIELDS: [Bounds; 5] = [
    Bounds { min: 0, max: 59, names: &[] },
    Bounds { min: 0, max: 23, names: &[] },
    Bounds { min: 1, max: 31, names: &[] },
    Bounds {
        min: 1,
        max: 12,
        names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
    },
    Bounds { min: 0, max: 6, names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"] },
];

/// What is wrong with a schedule.
pub fn check(schedule: &str) -> Result<(), String> {
    let mut spec = schedule;
    if spec.is_empty() {
        return Err("empty spec string".to_owned());
    }
    if spec.starts_with("TZ=") || spec.starts_with("CRON_TZ=") {
        let (zone, rest) = spec.split_once(' ').ok_or_else(|| {
            "invalid schedule format: runtime error: slice bounds out of range [3:-1]".to_owned()
        })?;
        let zone = zone.split_once('=').map_or("", |(_, z)| z);
        time_zone(zone).map_err(|e| format!("provided bad location {zone}: {e}"))?;
        spec = rest.trim();
    }
    if spec.starts_with('@') {
        return descriptor(spec);
    }
    let fields: Vec<&str> = spec.split_whitespace().collect();
    if fields.len() != 5 {
        return Err(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
    }
    for (text, bounds) in fields.iter().zip(&FIELDS) {
        for range in text.split(',').filter(|r| !r.is_empty()) {
            check_range(range, bounds)?;
        }
    }
    Ok(())
}

fn descriptor(spec: &str) -> Result<(), String> {
    match spec {
        "@yearly" | "@annually" | "@monthly" | "@weekly" | "@daily" | "@midnight" | "@hourly" => Ok(()),
        _ => match spec.strip_prefix("@every ") {
            Some(d) => go_duration(d).map_err(|e| format!("failed to parse duration {spec}: {e}")),
            None => Err(format!("unrecognized descriptor: {spec}")),
        },
    }
}

/// Whether a text is a duration in Go's notation (`1h30m`).
fn go_duration(text: &str) -> Result<(), String> {
    let invalid = || format!("time: invalid duration {}", kaji_meta::text::quote(text));
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return Ok(());
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        if number.trim_matches('.').is_empty() || number.matches('.').count() > 1 {
            return Err(invalid());
        }
        let unit_len = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_len);
        if unit.is_empty() {
            return Err(format!("time: missing unit in duration {}", kaji_meta::text::quote(text)));
        }
        if !matches!(unit, "ns" | "us" | "µs" | "μs" | "ms" | "s" | "m" | "h") {
            let (unit, text) = (kaji_meta::text::quote(unit), kaji_meta::text::quote(text));
            return Err(format!("time: unknown unit {unit} in duration {text}"));
        }
        rest = tail;
    }
    Ok(())
}

fn number(text: &str) -> Result<u64, String> {
    let fail = |why: &str| {
        let quoted = kaji_meta::text::quote(text);
        format!("failed to parse int from {text}: strconv.Atoi: parsing {quoted}: {why}")
    };
    let n: i128 = text.parse().map_err(|_| fail("invalid syntax"))?;
    match i64::try_from(n) {
        Ok(n) if n < 0 => Err(format!("negative number ({n}) not allowed: {text}")),
        Ok(n) => Ok(n.unsigned_abs()),
        Err(_) => Err(fail("value out of range")),
    }
}

fn check_range(expr: &str, b: &Bounds) -> Result<(), String> {
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
    Ok(())
}

/// The names of the IANA time zone database: per line an area, a colon, and the zones in it.
static ZONES: &str = include_str!("zones.txt");

/// What is wrong with the name of a time zone.
pub fn time_zone(name: &str) -> Result<(), String> {
    let (area, zone) = name.split_once('/').unwrap_or(("", name));
    let known = ZONES
        .lines()
        .filter_map(|l| l.split_once(": "))
        .any(|(a, zones)| a == area && zones.split(' ').any(|z| z == zone));
    if matches!(name, "" | "UTC" | "Local") || known {
        Ok(())
    } else {
        Err(format!("unknown time zone {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn schedules() {
        for ok in ["*/5 * * * *", "0 0 1 jan-mar mon,fri", "@daily", "@every 1h30m", "? 0/2 1-5 * 0"] {
            assert_eq!(check(ok), Ok(()), "{ok}");
        }
        let bad = [
            "",
            "* * * *",
            "60 * * * *",
            "* * 0 * *",
            "*/0 * * * *",
            "1-2-3 * * * *",
            "1/2/3 * * * *",
            "a * * * *",
            "5-1 * * * *",
            "@never",
            "@every x",
            "-1 * * * *",
        ];
        let out: Vec<String> = bad.iter().map(|b| check(b).unwrap_err()).collect();
        expect![[r#"
            empty spec string
            expected exactly 5 fields, found 4: [* * * *]
            end of range (60) above maximum (59): 60
            beginning of range (0) below minimum (1): 0
            step of range should be a positive number: */0
            too many hyphens: 1-2-3
            too many slashes: 1/2/3
            failed to parse int from a: strconv.Atoi: parsing "a": invalid syntax
            beginning of range (5) beyond end of range (1): 5-1
            unrecognized descriptor: @never
            failed to parse duration @every x: time: invalid duration "x"
            failed to parse int from : strconv.Atoi: parsing "": invalid syntax"#]]
        .assert_eq(&out.join("\n"));
    }

    #[test]
    fn zones() {
        for ok in ["UTC", "Etc/UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "CET"] {
            assert_eq!(time_zone(ok), Ok(()), "{ok}");
        }
        assert_eq!(time_zone("Mars/Base"), Err("unknown time zone Mars/Base".to_owned()));
    }
}
