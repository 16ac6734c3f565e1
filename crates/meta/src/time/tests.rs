//! Parsing, printing and ages.

use super::*;
use expect_test::expect;
use proptest::prelude::*;

#[test]
fn parses_and_prints() {
    let t = |s: &str| Time::parse(s).unwrap().to_string();
    assert_eq!(t("2024-02-29T12:34:56Z"), "2024-02-29T12:34:56Z");
    assert_eq!(t("2024-02-29T12:34:56.999+02:00"), "2024-02-29T10:34:56Z");
    assert_eq!(t("1969-12-31T23:59:59.5Z"), "1969-12-31T23:59:59Z");
    let m = |s: &str| MicroTime::parse(s).unwrap().to_string();
    assert_eq!(m("2024-02-29T12:34:56.000001Z"), "2024-02-29T12:34:56.000001Z");
    assert_eq!(m("2024-02-29T12:34:56.100000-01:30"), "2024-02-29T14:04:56.100000Z");
    // The last of both, which no timestamp of jiff's reaches.
    for last in ["9999-12-31T23:59:59Z", "9999-12-31T21:59:59-02:00"] {
        assert_eq!(t(last), "9999-12-31T23:59:59Z");
    }
    assert_eq!(m("9999-12-31T23:59:59.999999Z"), "9999-12-31T23:59:59.999999Z");
    assert_eq!(Time::parse("9999-12-31T23:59:59Z").unwrap().unix(), 253_402_300_799);
    assert_eq!(MicroTime::new(Timestamp::UNIX_EPOCH).to_string(), "1970-01-01T00:00:00.000000Z");
}

#[test]
fn errors_are_gos() {
    let bad = [
        "",
        "2024",
        "2024-13-01T00:00:00Z",
        "2024-02-30T00:00:00Z",
        "2024-02-20 00:00:00Z",
        "2024-02-20T24:00:00Z",
        "2024-02-20T00:00:00",
        "2024-02-20T00:00:00Zx",
        "2024-02-20T00:00:00z",
        "2024-02-20T00:00:00+25:00",
        "9999-12-31T23:59:59-00:01",
        "0000-01-01T00:00:00+00:01",
    ];
    let text: Vec<String> = bad.iter().map(|s| Time::parse(s).unwrap_err().to_string()).collect();
    expect![[r#"
        parsing time "" as "2006-01-02T15:04:05Z07:00": cannot parse "" as "2006"
        parsing time "2024" as "2006-01-02T15:04:05Z07:00": cannot parse "" as "-"
        parsing time "2024-13-01T00:00:00Z": month out of range
        parsing time "2024-02-30T00:00:00Z": day out of range
        parsing time "2024-02-20 00:00:00Z" as "2006-01-02T15:04:05Z07:00": cannot parse " 00:00:00Z" as "T"
        parsing time "2024-02-20T24:00:00Z": hour out of range
        parsing time "2024-02-20T00:00:00" as "2006-01-02T15:04:05Z07:00": cannot parse "" as "Z07:00"
        parsing time "2024-02-20T00:00:00Zx": extra text: "x"
        parsing time "2024-02-20T00:00:00z" as "2006-01-02T15:04:05Z07:00": cannot parse "z" as "Z07:00"
        parsing time "2024-02-20T00:00:00+25:00": time zone offset hour out of range
        parsing time "9999-12-31T23:59:59-00:01": time out of range
        parsing time "0000-01-01T00:00:00+00:01": time out of range"#]]
    .assert_eq(&text.join("\n"));
    let text: Vec<String> =
        ["2024-02-20T00:00:00Z", "2024-02-20T00:00:00.1234567Z", "2024-02-20T00:00:00.12Z"]
            .iter()
            .map(|s| MicroTime::parse(s).unwrap_err().to_string())
            .collect();
    expect![[r#"
        parsing time "2024-02-20T00:00:00Z" as "2006-01-02T15:04:05.000000Z07:00": cannot parse "Z" as ".000000"
        parsing time "2024-02-20T00:00:00.1234567Z" as "2006-01-02T15:04:05.000000Z07:00": cannot parse "7Z" as "Z07:00"
        parsing time "2024-02-20T00:00:00.12Z" as "2006-01-02T15:04:05.000000Z07:00": cannot parse ".12Z" as ".000000""#]].assert_eq(&text.join("\n"));
}

#[test]
fn prints_durations_for_humans() {
    let (m, h, d, y) = (60, 3600, 86_400, 86_400 * 365);
    let cases = [
        (-2, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (2 * m, "2m"),
        (2 * m + 1, "2m1s"),
        (10 * m - 1, "9m59s"),
        (10 * m, "10m"),
        (3 * h - 1, "179m"),
        (3 * h, "3h"),
        (3 * h + 5 * m, "3h5m"),
        (8 * h, "8h"),
        (2 * d - 1, "47h"),
        (2 * d, "2d"),
        (2 * d + h, "2d1h"),
        (8 * d, "8d"),
        (2 * y - 1, "729d"),
        (2 * y, "2y"),
        (2 * y + d, "2y1d"),
        (8 * y, "8y"),
    ];
    for (seconds, want) in cases {
        assert_eq!(human_duration(seconds), want, "{seconds}");
    }
    for (seconds, want) in [(59, "59s"), (60, "1m"), (h, "1h"), (d, "1d"), (y, "1y"), (-5, "<invalid>")] {
        assert_eq!(short_human_duration(seconds), want);
    }
}

#[test]
fn prints_ages() {
    let clock = ManualClock::new("2024-01-01T00:00:00Z".parse().unwrap());
    clock.advance(SignedDuration::from_mins(5));
    assert_eq!(time_since("2024-01-01T00:00:00Z", clock.now()), "5m");
    assert_eq!(time_since("2024-01-01T00:04:59.500000Z", clock.now()), "0s");
    assert_eq!(time_since("", clock.now()), "<unknown>");
    clock.set(Timestamp::UNIX_EPOCH);
    assert_eq!(time_since("2024-01-01T00:00:00Z", clock.now()), "<invalid>");
}

proptest! {
    #[test]
    fn round_trips(nanos in -62_135_596_800_000_000_000_i128..253_402_000_000_000_000_000) {
        let ts = Timestamp::from_nanosecond(nanos).unwrap();
        let (t, m) = (Time::new(ts), MicroTime::new(ts));
        prop_assert_eq!(Time::parse(&t.to_string()), Ok(t));
        prop_assert_eq!(t.to_string(), t.timestamp().to_string());
        prop_assert_eq!(m.to_string(), format!("{:.6}", m.timestamp()));
        prop_assert_eq!(Time::from_unix(t.unix()), Some(t));
        prop_assert_eq!(MicroTime::from_unix(m.unix().0, m.unix().1), Some(m));
        prop_assert_eq!(MicroTime::parse(&m.to_string()), Ok(m));
        prop_assert!(t.timestamp() <= m.timestamp() && m.timestamp() <= ts);
    }

    #[test]
    fn never_panics(s in "[0-9TZ:+.é-]{0,32}") {
        let _ = (Time::parse(&s), MicroTime::parse(&s));
    }
}

#[test]
fn a_shared_clock_jumps_as_the_clock_does() {
    struct Ahead;
    impl Clock for Ahead {
        fn now(&self) -> Timestamp {
            Timestamp::UNIX_EPOCH
        }

        fn ahead(&self) -> Duration {
            Duration::from_secs(5)
        }

        fn jumped(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
            Box::pin(std::future::ready(()))
        }
    }
    let shared = std::sync::Arc::new(Ahead);
    let clock: &dyn Clock = &shared;
    assert_eq!(clock.ahead(), Duration::from_secs(5));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(clock.jumped().as_mut().poll(&mut cx).is_ready());
}
