//! Numbers: percentiles, counting lines, and figures as people read them. Pure.

use std::time::Duration;

/// The nearest-rank percentile (0 < `percent` <= 100) of ascending samples; `None` of none.
pub fn percentile(ascending: &[Duration], percent: f64) -> Option<Duration> {
    let rank = (percent / 100.0 * ascending.len() as f64).ceil() as usize;
    ascending.get(rank.max(1) - 1).copied()
}

/// The middle one of the samples, in seconds.
pub fn median(samples: &mut [f64]) -> Option<f64> {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied()
}

/// How many newlines there are. Sums of single bytes over short runs, so that the compiler uses vectors.
pub fn newlines(bytes: &[u8]) -> usize {
    const RUN: usize = 224;
    bytes.chunks(RUN).map(|run| usize::from(run.iter().map(|b| u8::from(*b == b'\n')).sum::<u8>())).sum()
}

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Time in seconds.
    Seconds,
    /// Memory or transfer in bytes; shown in powers of ten.
    Bytes,
    /// A rate.
    PerSecond,
    /// A plain number.
    Count,
    /// One figure by another.
    Ratio,
}

impl Unit {
    /// The unit's name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Seconds => "seconds",
            Unit::Bytes => "bytes",
            Unit::PerSecond => "per second",
            Unit::Count => "count",
            Unit::Ratio => "ratio",
        }
    }

    /// A value as people read it.
    pub fn show(self, value: f64) -> String {
        let magnitude = value.abs();
        match self {
            Unit::Seconds if magnitude < 1e-3 => format!("{} µs", digits(value * 1e6)),
            Unit::Seconds if magnitude < 1.0 => format!("{} ms", digits(value * 1e3)),
            Unit::Seconds => format!("{} s", digits(value)),
            Unit::Bytes if magnitude < 1e6 => format!("{} kB", digits(value / 1e3)),
            Unit::Bytes if magnitude < 1e9 => format!("{} MB", digits(value / 1e6)),
            Unit::Bytes => format!("{} GB", digits(value / 1e9)),
            Unit::PerSecond => format!("{}/s", digits(value)),
            Unit::Count => grouped(value.round() as i64),
            Unit::Ratio => format!("{}x", digits(value)),
        }
    }
}

/// Three significant digits at least, thousands grouped.
pub fn digits(value: f64) -> String {
    match value.abs() {
        m if m >= 100.0 => grouped(value.round() as i64),
        m if m >= 10.0 => trimmed(format!("{value:.1}")),
        _ => trimmed(format!("{value:.2}")),
    }
}

fn trimmed(text: String) -> String {
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// `1234567` as `1,234,567`.
pub fn grouped(value: i64) -> String {
    let plain = value.unsigned_abs().to_string();
    let mut text = String::from(if value < 0 { "-" } else { "" });
    for (i, digit) in plain.chars().enumerate() {
        if i > 0 && (plain.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn percentiles_are_nearest_rank() {
        let samples: Vec<Duration> = (1..=200).map(Duration::from_millis).collect();
        let at = |p| percentile(&samples, p).unwrap().as_millis();
        assert_eq!([at(0.1), at(50.0), at(99.0), at(100.0)], [1, 100, 198, 200]);
        assert_eq!(percentile(&samples[..1], 50.0), Some(Duration::from_millis(1)));
        assert_eq!(percentile(&[], 50.0), None);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&mut []), None);
    }

    #[test]
    fn newlines_of_any_length() {
        for length in [0, 1, 223, 224, 225, 1000, 70_000] {
            assert_eq!(newlines(&vec![b'\n'; length]), length);
            assert_eq!(newlines(&vec![b'x'; length]), 0);
        }
        assert_eq!(newlines(b"{}\n{}\n{"), 2);
    }

    #[test]
    fn figures_read_well() {
        let cases = [
            (Unit::Seconds, 0.000_042),
            (Unit::Seconds, 0.06),
            (Unit::Seconds, 0.003_04),
            (Unit::Seconds, 3.2),
            (Unit::Seconds, 43.0),
            (Unit::Seconds, 143.4),
            (Unit::Bytes, 8e6),
            (Unit::Bytes, 520.4e6),
            (Unit::Bytes, 2.16e9),
            (Unit::Bytes, -4096.0),
            (Unit::PerSecond, 705.0),
            (Unit::PerSecond, 1_447_312.4),
            (Unit::Count, 0.0),
            (Unit::Count, 50_000.0),
            (Unit::Ratio, 1.284),
        ];
        let shown: Vec<String> = cases.iter().map(|(unit, value)| unit.show(*value)).collect();
        expect![[r#"
            42 µs
            60 ms
            3.04 ms
            3.2 s
            43 s
            143 s
            8 MB
            520 MB
            2.16 GB
            -4.1 kB
            705/s
            1,447,312/s
            0
            50,000
            1.28x"#]]
        .assert_eq(&shown.join("\n"));
    }
}
