//! Limits, rates and windows.

use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

const WINDOW: SignedDuration = SignedDuration::from_secs(300);

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn behavior(up: Value, down: Value) -> Behavior {
    serde_json::from_value(json!({"scaleUp": up, "scaleDown": down})).unwrap()
}

/// As defaulted by the API server.
fn usual() -> Behavior {
    behavior(
        json!({"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": [
            {"type": "Pods", "value": 4, "periodSeconds": 15}, {"type": "Percent", "value": 100, "periodSeconds": 15}]}),
        json!({"selectPolicy": "Max", "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]}),
    )
}

struct Run {
    history: History,
    behavior: Option<Behavior>,
    bounds: Bounds,
}

impl Run {
    fn new(behavior: Option<Behavior>, current: i64) -> Run {
        let mut history = History::default();
        history.begin(current, at(-1000));
        Run { history, behavior, bounds: Bounds { min: 2, max: 50, current } }
    }

    /// A recommendation at a second, carried out.
    fn step(&mut self, second: i64, wanted: i64) -> String {
        let behavior = self.behavior.as_ref();
        let done = normalize(&mut self.history, behavior, self.bounds, wanted, WINDOW, at(second));
        let from = self.bounds.current;
        if done.replicas != from {
            self.history.scaled(from, done.replicas, at(second));
            self.bounds.current = done.replicas;
        }
        format!(
            "{second}s: {wanted} {from}->{} {} {} {}\n",
            done.replicas, done.able.0, done.limited, done.limit.0
        )
    }
}

#[test]
fn limits_scaling_without_a_behaviour() {
    let mut run = Run::new(None, 10);
    let steps = [(0, 10), (15, 60), (30, 60), (45, 5), (60, 60), (200, 5), (361, 5), (380, 1), (700, 1)];
    let text: String = steps.into_iter().map(|(second, wanted)| run.step(second, wanted)).collect();
    expect_test::expect![[r#"
        0s: 10 10->10 ReadyForNewScale false DesiredWithinRange
        15s: 60 10->20 ReadyForNewScale true ScaleUpLimit
        30s: 60 20->40 ReadyForNewScale true ScaleUpLimit
        45s: 5 40->50 ScaleDownStabilized true TooManyReplicas
        60s: 60 50->50 ReadyForNewScale true TooManyReplicas
        200s: 5 50->50 ScaleDownStabilized true TooManyReplicas
        361s: 5 50->5 ReadyForNewScale false DesiredWithinRange
        380s: 1 5->5 ScaleDownStabilized false DesiredWithinRange
        700s: 1 5->2 ReadyForNewScale true TooFewReplicas
    "#]]
    .assert_eq(&text);
}

#[test]
fn limits_scaling_by_a_behaviour() {
    let mut run = Run::new(Some(usual()), 3);
    let steps = [(0, 100), (10, 100), (16, 100), (40, 100), (60, 4), (500, 4)];
    let text: String = steps.into_iter().map(|(second, wanted)| run.step(second, wanted)).collect();
    expect_test::expect![[r#"
        0s: 100 3->7 ReadyForNewScale true ScaleUpLimit
        10s: 100 7->7 ReadyForNewScale true ScaleUpLimit
        16s: 100 7->14 ReadyForNewScale true ScaleUpLimit
        40s: 100 14->28 ReadyForNewScale true ScaleUpLimit
        60s: 4 28->28 ScaleDownStabilized false DesiredWithinRange
        500s: 4 28->4 ReadyForNewScale false DesiredWithinRange
    "#]]
    .assert_eq(&text);
}

#[test]
fn policies_are_selected() {
    let policies = json!([{"type": "Pods", "value": 2, "periodSeconds": 60}, {"type": "Percent", "value": 50, "periodSeconds": 60}]);
    let rules =
        |select: &str| json!({"stabilizationWindowSeconds": 0, "selectPolicy": select, "policies": policies});
    let run = |select: &str, wanted: i64| {
        let mut run = Run::new(Some(behavior(rules(select), rules(select))), 10);
        run.step(0, wanted) + &run.step(30, wanted) + &run.step(61, wanted)
    };
    let text: String = ["Max", "Min", "Disabled"].map(|select| run(select, 40) + &run(select, 2)).concat();
    expect_test::expect![[r#"
        0s: 40 10->15 ReadyForNewScale true ScaleUpLimit
        30s: 40 15->15 ReadyForNewScale true ScaleUpLimit
        61s: 40 15->23 ReadyForNewScale true ScaleUpLimit
        0s: 2 10->5 ReadyForNewScale true ScaleDownLimit
        30s: 2 5->5 ReadyForNewScale true ScaleDownLimit
        61s: 2 5->2 ReadyForNewScale false DesiredWithinRange
        0s: 40 10->12 ReadyForNewScale true ScaleUpLimit
        30s: 40 12->12 ReadyForNewScale true ScaleUpLimit
        61s: 40 12->14 ReadyForNewScale true ScaleUpLimit
        0s: 2 10->8 ReadyForNewScale true ScaleDownLimit
        30s: 2 8->8 ReadyForNewScale true ScaleDownLimit
        61s: 2 8->6 ReadyForNewScale true ScaleDownLimit
        0s: 40 10->10 ReadyForNewScale true ScaleUpLimit
        30s: 40 10->10 ReadyForNewScale true ScaleUpLimit
        61s: 40 10->10 ReadyForNewScale true ScaleUpLimit
        0s: 2 10->10 ReadyForNewScale true ScaleDownLimit
        30s: 2 10->10 ReadyForNewScale true ScaleDownLimit
        61s: 2 10->10 ReadyForNewScale true ScaleDownLimit
    "#]]
    .assert_eq(&text);
}

#[test]
fn growth_waits_for_its_window() {
    let up = json!({"stabilizationWindowSeconds": 60, "selectPolicy": "Max", "policies": [{"type": "Pods", "value": 100, "periodSeconds": 15}]});
    let mut run = Run::new(Some(behavior(up, json!({"selectPolicy": "Max", "policies": []}))), 5);
    let text = run.step(0, 5) + &run.step(15, 20) + &run.step(30, 30) + &run.step(75, 30) + &run.step(91, 30);
    expect_test::expect![[r#"
        0s: 5 5->5 ReadyForNewScale false DesiredWithinRange
        15s: 20 5->5 ScaleUpStabilized false DesiredWithinRange
        30s: 30 5->5 ScaleUpStabilized false DesiredWithinRange
        75s: 30 5->30 ReadyForNewScale false DesiredWithinRange
        91s: 30 30->30 ReadyForNewScale false DesiredWithinRange
    "#]]
    .assert_eq(&text);
}

#[test]
fn a_history_is_bounded() {
    let mut history = History::default();
    let bounds = Bounds { min: 1, max: 10, current: 5 };
    for i in 0..10_000 {
        normalize(&mut history, None, bounds, 5, WINDOW, at(i / 100));
    }
    assert_eq!(history.recommendations.len(), MOST_KEPT);
    normalize(&mut history, None, bounds, 5, WINDOW, at(100_000));
    assert_eq!(history.recommendations.len(), 1);
}

proptest! {
    /// Replicas stay within their bounds, and stabilization within what the window has.
    #[test]
    fn replicas_stay_within_bounds(
        steps in prop::collection::vec((0i64..120, 0i64..100), 1..40),
        (min, span, start) in (1i64..10, 0i64..40, 0i64..40),
        with_behavior: bool,
        (up_window, down_window) in (0i64..600, 0i64..600),
    ) {
        let max = min + span;
        let mut rules = usual();
        rules.scale_up.stabilization_window_seconds = Some(up_window);
        rules.scale_down.stabilization_window_seconds = Some(down_window);
        let mut run = Run::new(with_behavior.then_some(rules), (min + start).min(max));
        (run.bounds.min, run.bounds.max) = (min, max);
        let mut second = 0;
        for (pause, wanted) in steps {
            second += pause;
            let before = run.bounds.current;
            let extremes = run.history.recommendations.iter().map(|e| e.replicas).chain([wanted, before]);
            let (lowest, highest) = (extremes.clone().min().unwrap(), extremes.max().unwrap());
            run.step(second, wanted);
            let after = run.bounds.current;
            prop_assert!((min..=max).contains(&after));
            prop_assert!(after >= lowest.clamp(min, max) && after <= highest.clamp(min, max), "{before} {wanted} {after}");
        }
    }
}
