//! Tests of the numbers of controllers, and of the page of them.

use super::*;
use expect_test::expect;
use prometheus_client::registry::Registry;

static SYNCS: Metric = Metric::counter("syncs_total", "[STABLE] The number\nof syncs.", &["result"]);
static CHANGES: Metric = Metric::counter("changes", "[ALPHA] Changes", &[]);
static TOOK: Metric = Metric::histogram(
    "took_seconds",
    "[BETA] Times",
    &["result", "action"],
    Buckets::exponential(0.5, 4.0, 2),
);
static SIZES: Metric = Metric::histogram("sizes", "[ALPHA] Sizes", &[], Buckets::Bounds(&[1.0, 10.0]));
static HELD: Metric = Metric::gauge("held", "[ALPHA] Things", &["zone"]);

fn page(metrics: &ControllerMetrics) -> String {
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    kaji_exposition::encode(&registry)
}

#[test]
fn samples_become_series() {
    let metrics = ControllerMetrics::default();
    metrics.declare(&[&SYNCS, &CHANGES, &SIZES]);
    for (result, took) in [("success", 0.5), ("success", 1.0), ("error", 9.0)] {
        metrics.observe(&SYNCS.one([result.into()]));
        metrics.observe(&TOOK.sample([result.into(), "none".into()], took));
    }
    metrics.observe(&SYNCS.count(["success".into()], 3));
    expect![[r##"
        # HELP changes [ALPHA] Changes
        # TYPE changes counter
        changes 0
        # HELP sizes [ALPHA] Sizes
        # TYPE sizes histogram
        sizes_bucket{le="1"} 0
        sizes_bucket{le="10"} 0
        sizes_bucket{le="+Inf"} 0
        sizes_sum 0
        sizes_count 0
        # HELP syncs_total [STABLE] The number\nof syncs.
        # TYPE syncs_total counter
        syncs_total{result="error"} 1
        syncs_total{result="success"} 5
        # HELP took_seconds [BETA] Times
        # TYPE took_seconds histogram
        took_seconds_bucket{action="none",result="error",le="0.5"} 0
        took_seconds_bucket{action="none",result="error",le="2"} 0
        took_seconds_bucket{action="none",result="error",le="+Inf"} 1
        took_seconds_sum{action="none",result="error"} 9
        took_seconds_count{action="none",result="error"} 1
        took_seconds_bucket{action="none",result="success",le="0.5"} 1
        took_seconds_bucket{action="none",result="success",le="2"} 2
        took_seconds_bucket{action="none",result="success",le="+Inf"} 2
        took_seconds_sum{action="none",result="success"} 1.5
        took_seconds_count{action="none",result="success"} 2
    "##]]
    .assert_eq(&page(&metrics));
}

#[test]
fn gauges_are_read_for_each_page_as_long_as_their_controller_is_there() {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };
    let metrics = ControllerMetrics::default();
    metrics.declare(&[&HELD]);
    let number = Arc::new(AtomicUsize::new(1));
    let read = number.clone();
    let gauges = metrics.gauges(move || vec![HELD.count(["a".into()], read.load(Ordering::Relaxed))]);
    assert!(page(&metrics).ends_with("held{zone=\"a\"} 1\n"), "{}", page(&metrics));
    number.store(7, Ordering::Relaxed);
    assert!(page(&metrics).ends_with("held{zone=\"a\"} 7\n"), "{}", page(&metrics));
    drop(gauges);
    assert_eq!(page(&metrics), "");
}

#[test]
fn series_are_bounded() {
    let metrics = ControllerMetrics::default();
    for i in 0..2 * MAX_SERIES {
        metrics.observe(&SYNCS.one([i.to_string().into()]));
    }
    // One that is known is counted on.
    metrics.observe(&SYNCS.one(["0".into()]));
    let page = page(&metrics);
    assert_eq!(page.matches("syncs_total{").count(), MAX_SERIES);
    assert!(page.contains("syncs_total{result=\"0\"} 2\n"));
}
