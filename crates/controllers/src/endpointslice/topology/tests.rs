//! Tests of topology-aware hints: nodes and slices in, zones out.

use super::*;
use crate::testing::{object, snapshot};
use expect_test::expect;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::fmt::Write as _;

fn node(name: &str, zone: &str, cpu: &str, labels: &[&str]) -> Value {
    let mut node = json!({"metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
        "status": {"allocatable": {"cpu": cpu}, "conditions": [{"type": "Ready", "status": "True"}]}});
    for label in labels {
        node["metadata"]["labels"][*label] = "".into();
    }
    node
}

fn capacity(zones: &[(&str, &str)]) -> Capacity {
    let nodes = zones.iter().enumerate().map(|(i, (zone, cpu))| node(&i.to_string(), zone, cpu, &[]));
    Capacity::of(&snapshot::<Node>(nodes))
}

/// A slice with an endpoint for each zone, which has hints for the zone behind the colon.
fn slice(endpoints: &str) -> EndpointSlice {
    let endpoint = |text: &str| {
        let (zone, hint) = text.split_once(':').unwrap_or((text, ""));
        let mut endpoint = json!({"addresses": ["10.0.0.1"], "conditions": {"ready": true}, "zone": zone});
        if !hint.is_empty() {
            endpoint["hints"] = json!({"forZones": [{"name": hint}]});
        }
        endpoint
    };
    object(
        json!({"metadata": {"name": "s"}, "endpoints": endpoints.split_whitespace().map(endpoint).collect::<Vec<_>>()}),
    )
}

/// The hints of slices, of which those with a `=` before them are unchanged: the zones of what is written.
fn show(capacity: &Capacity, slices: &[&str]) -> String {
    let all: Vec<(bool, EndpointSlice)> =
        slices.iter().map(|text| (text.starts_with('='), slice(text.trim_start_matches('=')))).collect();
    let mut number = 0..;
    let candidates: Vec<Candidate<'_>> = all
        .iter()
        .map(|(unchanged, slice)| Candidate {
            ready: slice
                .endpoints
                .iter()
                .map(|e| (number.next().unwrap(), e.zone.as_deref().filter(|zone| *zone != "-")))
                .collect(),
            unchanged: unchanged.then_some(slice),
        })
        .collect();
    match hints(capacity, &candidates) {
        Err(reason) => reason,
        Ok(hints) => {
            let mut out = hints.zones.iter().fold(String::new(), |mut out, (i, zone)| {
                let _ = write!(out, "{i}={zone} ");
                out
            });
            if !hints.rewritten.is_empty() {
                let _ = write!(out, "rewritten {:?}", hints.rewritten);
            }
            out.trim_end().to_owned()
        }
    }
}

#[test]
fn endpoints_are_allotted_by_the_processors_of_zones() {
    let even = capacity(&[("a", "2"), ("b", "2"), ("c", "2000m")]);
    let uneven = capacity(&[("a", "6"), ("b", "2")]);
    let all = [
        show(&even, &["a b c"]),
        // Those of the crowded zone help others.
        show(&even, &["a a a a b b"]),
        show(&even, &["a a a"]),
        // Three quarters of the processors, three quarters of the endpoints.
        show(&uneven, &["a a b b"]),
        show(&uneven, &["b b b b"]),
        // Slices that fit stay as they are, and count.
        show(&even, &["=a:a b:b c:c", "a a c"]),
        show(&even, &["=a:a b:b c", "a b c"]),
        show(&even, &["=a:gone b:b c:c"]),
        show(&even, &["=a:a a:a a:a", "b c c"]),
    ];
    expect![[r#"
        0=a 1=b 2=c
        0=c 1=c 2=a 3=a 4=b 5=b
        0=b 1=c 2=a
        0=a 1=a 2=a 3=b
        0=a 1=a 2=a 3=b
        3=b 4=a 5=c
        0=a 1=b 2=c 3=a 4=b 5=c rewritten [0]
        0=a 1=b 2=c rewritten [0]
        0=b 1=a 2=a 3=b 4=c 5=c rewritten [0]"#]]
    .assert_eq(&all.join("\n"));
}

#[test]
fn says_why_there_are_no_hints() {
    let even = capacity(&[("a", "2"), ("b", "2")]);
    let all = [
        show(&capacity(&[("a", "2")]), &["a a a"]),
        show(&capacity(&[]), &["a a a"]),
        show(&capacity(&[("a", "2"), ("", "2")]), &["a a a"]),
        show(&capacity(&[("a", "2"), ("b", "much")]), &["a a a"]),
        show(&even, &["a"]),
        show(&even, &[]),
        show(&capacity(&[("a", "10"), ("b", "1"), ("c", "1"), ("d", "1")]), &["a b c d"]),
        show(&even, &["a b b -"]),
    ];
    expect![[r#"
        Insufficient Node information: allocatable CPU or zone not specified on one or more nodes
        Insufficient Node information: allocatable CPU or zone not specified on one or more nodes
        Insufficient Node information: allocatable CPU or zone not specified on one or more nodes
        Insufficient Node information: allocatable CPU or zone not specified on one or more nodes
        Insufficient number of endpoints (1 endpoints, 2 zones)
        Insufficient number of endpoints (0 endpoints, 2 zones)
        Unable to allocate minimum required endpoints to each zone without exceeding overload threshold (4 endpoints, 4 zones)
        One or more endpoints do not have a zone specified"#]].assert_eq(&all.join("\n"));
}

#[test]
fn nodes_that_run_no_workload_do_not_count() {
    let workers = [node("x", "a", "1", &[]), node("y", "b", "3", &[])];
    let mut broken = node("n", "", "0", &[]);
    broken["status"]["conditions"][0]["status"] = "False".into();
    let others = EXCLUDED.iter().map(|label| node(label.rsplit_once('/').unwrap().1, "", "8", &[*label]));
    let all = workers.clone().into_iter().chain(others).chain([broken]);
    assert_eq!(Capacity::of(&snapshot::<Node>(all)), Capacity::of(&snapshot::<Node>(workers)));
}

#[test]
fn overload_is_noticed_by_the_hints_of_slices() {
    let even = capacity(&[("a", "1"), ("b", "1")]);
    let overloads = |capacity: &Capacity, endpoints: &str| capacity.overloads([slice(endpoints)].iter());
    assert!(!overloads(&even, "a:a b:b"));
    assert!(!overloads(&even, "a b"), "without hints there is nothing to take back");
    assert!(overloads(&even, "a:a a:a"));
    assert!(overloads(&capacity(&[("a", "9"), ("b", "1")]), "a:a b:b b:b"));
    assert!(overloads(&capacity(&[("a", "9")]), "a:a b:b"));
    assert!(overloads(&capacity(&[("a", "1"), ("b", "1"), ("c", "1")]), "a:a b:b"));
}

proptest! {
    /// Where there are hints, every endpoint has one, and none moves that brings a zone further from its share than it was.
    #[test]
    fn what_moves_brings_zones_nearer_to_their_shares(
        processors in prop::collection::vec(1u32..64, 2..5),
        endpoints in prop::collection::vec(0usize..5, 0..40),
    ) {
        let zones: Vec<(String, String)> =
            processors.iter().enumerate().map(|(i, n)| (format!("z{i}"), n.to_string())).collect();
        let zones: Vec<(&str, &str)> = zones.iter().map(|(z, n)| (z.as_str(), n.as_str())).collect();
        let capacity = capacity(&zones);
        let names: Vec<String> = endpoints.iter().map(|i| format!("z{}", i % zones.len())).collect();
        let ready = names.iter().enumerate().map(|(i, zone)| (i, Some(zone.as_str()))).collect();
        if let Ok(hints) = hints(&capacity, &[Candidate { ready, unchanged: None }]) {
            prop_assert_eq!(hints.zones.len(), names.len());
            for (zone, allotment) in capacity.allotments(names.len()).unwrap() {
                let before = f64::from(u32::try_from(names.iter().filter(|n| *n == zone).count()).unwrap());
                let after = hints.zones.values().filter(|n| *n == zone).count();
                let after = f64::from(u32::try_from(after).unwrap());
                prop_assert!((after - allotment.desired).abs() <= (before - allotment.desired).abs());
                prop_assert!(after <= before.max(allotment.desired + 0.5));
                prop_assert!(after >= before.min(allotment.desired - 0.5));
            }
        }
    }
}
