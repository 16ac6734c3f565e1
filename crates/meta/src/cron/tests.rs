//! Tests of schedules: times, zones, and the texts for what does not parse.

use super::*;
use expect_test::expect;
use proptest::{prelude::*, sample::select};

fn next(spec: &str, after: &str) -> String {
    let schedule = Schedule::parse(spec).unwrap();
    schedule.next(after.parse().unwrap(), &TimeZone::UTC).map_or("never".into(), |t| t.to_string())
}

#[test]
fn finds_the_next_time() {
    for (spec, after, expected) in [
        ("* * * * *", "2025-01-01T12:00:00Z", "2025-01-01T12:01:00Z"),
        ("*/15 * * * *", "2025-01-01T12:00:30Z", "2025-01-01T12:15:00Z"),
        ("5/20 * * * *", "2025-01-01T12:06:00Z", "2025-01-01T12:25:00Z"),
        ("0 9-17/4 * * MON-FRI", "2025-01-03T18:00:00Z", "2025-01-06T09:00:00Z"),
        ("0 0 29 feb *", "2025-01-01T00:00:00Z", "2028-02-29T00:00:00Z"),
        ("0 0 13 * 5", "2025-01-01T00:00:00Z", "2025-01-03T00:00:00Z"),
        ("0 0 13 * ?", "2025-01-01T00:00:00Z", "2025-01-13T00:00:00Z"),
        ("0 0 31 2 *", "2025-01-01T00:00:00Z", "never"),
        ("0 , * * *", "2025-01-01T00:00:00Z", "never"),
        ("@hourly", "2025-01-01T23:59:59Z", "2025-01-02T00:00:00Z"),
        ("@yearly", "2025-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("@every 1h30m", "2025-01-01T00:00:00Z", "2025-01-01T01:30:00Z"),
        ("@every -5m", "2025-01-01T00:00:00Z", "2025-01-01T00:00:01Z"),
        ("TZ=Asia/Tokyo 0 9 * * *", "2025-01-01T01:00:00Z", "2025-01-02T00:00:00Z"),
    ] {
        assert_eq!(next(spec, after), expected, "{spec}");
    }
}

#[test]
fn counts_in_the_given_zone() {
    let zone = TimeZone::fixed(jiff::tz::offset(2));
    let schedule = Schedule::parse("0 1 * * *").unwrap();
    let at = schedule.next("2025-01-01T12:00:00Z".parse().unwrap(), &zone).unwrap();
    assert_eq!(at.to_string(), "2025-01-01T23:00:00Z");
}

#[test]
fn follows_daylight_saving_time() {
    let zone = TimeZone::get("Europe/Berlin").unwrap();
    let schedule = Schedule::parse("0 9 * * *").unwrap();
    let after = |t: &str| schedule.next(t.parse().unwrap(), &zone).unwrap().to_string();
    assert_eq!(after("2025-01-01T12:00:00Z"), "2025-01-02T08:00:00Z");
    assert_eq!(after("2025-07-01T12:00:00Z"), "2025-07-02T07:00:00Z");
}

/// The first so many times of a schedule after one.
fn times(zone: &str, spec: &str, after: &str, count: usize) -> String {
    let (zone, schedule) = (TimeZone::get(zone).unwrap(), Schedule::parse(spec).unwrap());
    let first = schedule.next(after.parse().unwrap(), &zone);
    let times = std::iter::successors(first, |at| schedule.next(*at, &zone));
    times.take(count).map(|at| at.to_string()).collect::<Vec<_>>().join(" ")
}

#[test]
fn times_come_again_when_clocks_are_put_back() {
    let after = "2025-11-02T04:30:00Z";
    expect!["2025-11-02T05:30:00Z 2025-11-02T06:30:00Z 2025-11-03T06:30:00Z"].assert_eq(&times(
        "America/New_York",
        "30 1 * * *",
        after,
        3,
    ));
    expect!["2025-11-02T05:00:00Z 2025-11-02T06:00:00Z 2025-11-02T07:00:00Z"].assert_eq(&times(
        "America/New_York",
        "0 * * * *",
        after,
        3,
    ));
    // By half an hour.
    expect!["2025-04-05T14:45:00Z 2025-04-05T15:15:00Z 2025-04-06T15:15:00Z"].assert_eq(&times(
        "Australia/Lord_Howe",
        "45 1 * * *",
        "2025-04-05T00:00:00Z",
        3,
    ));
}

#[test]
fn times_that_clocks_skip_do_not_come() {
    let after = "2025-03-08T12:00:00Z";
    expect!["2025-03-10T06:30:00Z"].assert_eq(&times("America/New_York", "30 2 * * *", after, 1));
    let after = "2025-10-04T00:00:00Z";
    expect!["2025-10-05T15:15:00Z"].assert_eq(&times("Australia/Lord_Howe", "15 2 * * *", after, 1));
}

#[test]
fn seldom_times_are_found_across_changes_of_a_zone() {
    let after = "2025-01-01T00:00:00Z";
    expect!["2028-02-29T05:00:00Z"].assert_eq(&times("America/New_York", "0 0 29 2 *", after, 1));
    // Eight years lie between two leap years at the end of a century.
    expect!["2096-02-29T05:00:00Z"].assert_eq(&times(
        "America/New_York",
        "0 0 29 2 *",
        "2095-01-01T00:00:00Z",
        2,
    ));
    assert_eq!(times("America/New_York", "0 0 31 2 *", after, 1), "");
}

fn spec() -> impl Strategy<Value = String> {
    let minute = select(vec!["*", "*/15", "0", "30", "59", "1-59/7", "5,45"]);
    let hour = select(vec!["*", "*/2", "0", "1", "2", "3", "1-3", "23"]);
    let day = select(vec!["*", "?", "*/3", "1", "8-14", "29"]);
    let month = select(vec!["*", "*", "3,4", "oct,nov"]);
    let weekday = select(vec!["*", "*", "sun", "mon-fri", "6"]);
    (minute, hour, day, month, weekday).prop_map(|(m, h, d, n, w)| format!("{m} {h} {d} {n} {w}"))
}

/// The minutes that [`slow`] tries.
const TRIED: i64 = 3 * 24 * 60;

/// The first time of the minutes from `first` on, each of which is tried.
fn slow(schedule: &Schedule, first: i64, zone: &TimeZone) -> Option<Timestamp> {
    let Times::Fields(fields) = &schedule.times else { panic!("it has fields") };
    let has = |bits: u64, value: i8| bits & (1 << value) != 0;
    (first..first + TRIED).map(|minute| Timestamp::from_second(minute * 60).unwrap()).find(|at| {
        let civil = zone.to_datetime(*at);
        has(fields.minutes, civil.minute())
            && has(fields.hours, civil.hour())
            && has(fields.months, civil.month())
            && fields.day(civil.date())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn finds_what_trying_every_minute_finds(
        spec in spec(),
        name in select(vec!["America/New_York", "Australia/Lord_Howe", "Europe/Berlin", "Africa/Cairo", "UTC"]),
        year in 1_420_000_000_i64..2_050_000_000,
        away in -2 * 86_400_i64..86_400,
    ) {
        let (schedule, zone) = (Schedule::parse(&spec).unwrap(), TimeZone::get(name).unwrap());
        let year = Timestamp::from_second(year).unwrap();
        let change = zone.following(year).next().map_or(year, |change| change.timestamp());
        let after = change.as_second() + away;
        let first = after.div_euclid(60) + 1;
        let found = schedule.next(Timestamp::from_second(after).unwrap(), &zone);
        let near = found.filter(|at| at.as_second() < (first + TRIED) * 60);
        prop_assert_eq!(near, slow(&schedule, first, &zone), "{} in {} after {}", spec, name, after);
    }
}

#[test]
fn accepts_schedules() {
    for ok in ["*/5 * * * *", "0 0 1 jan-mar mon,fri", "@daily", "@every 1h30m", "? 0/2 1-5 * 0"] {
        assert!(Schedule::parse(ok).is_ok(), "{ok}");
    }
}

#[test]
fn refuses_with_the_texts_of_the_parser() {
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
        "TZ=Mars/Base * * * * *",
        "TZ=UTC",
    ];
    let out: Vec<String> = bad.iter().map(|b| Schedule::parse(b).unwrap_err()).collect();
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
        failed to parse int from : strconv.Atoi: parsing "": invalid syntax
        provided bad location Mars/Base: unknown time zone Mars/Base
        invalid schedule format: runtime error: slice bounds out of range [3:-1]"#]]
    .assert_eq(&out.join("\n"));
}

#[test]
fn finds_time_zones_by_name() {
    for ok in ["UTC", "Etc/UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "CET"] {
        assert!(time_zone(ok).is_ok(), "{ok}");
    }
    assert_eq!(time_zone("Mars/Base"), Err("unknown time zone Mars/Base".to_owned()));
}

#[test]
fn finds_every_listed_zone() {
    for (area, zones) in ZONES.lines().filter_map(|l| l.split_once(": ")) {
        for zone in zones.split(' ') {
            let name = if area.is_empty() { zone.to_owned() } else { format!("{area}/{zone}") };
            assert!(time_zone(&name).is_ok(), "{name}");
        }
    }
}
