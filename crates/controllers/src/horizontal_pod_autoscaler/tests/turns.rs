//! When autoscalers have their turns, and what a turn leaves behind.

use super::*;
use futures_util::FutureExt as _;

fn of_generation(generation: i64) -> Option<Arc<HorizontalPodAutoscaler>> {
    let mut hpa = autoscaler(cpu(80));
    hpa["metadata"]["generation"] = generation.into();
    Some(Arc::new(object(hpa)))
}

#[tokio::test]
async fn new_autoscalers_and_changed_specs_have_their_turn_at_once() {
    let harness = Harness::new(played(2)).await;
    let all = &harness.autoscalers;
    let at_once = |old, new| {
        all.changed(&Change { old, new });
        let key = all.queue.next().now_or_never().flatten();
        key.inspect(|key| all.queue.done(key)).is_some()
    };
    assert!(at_once(None, of_generation(1)));
    assert!(!at_once(of_generation(1), of_generation(1)), "a status");
    assert!(at_once(of_generation(1), of_generation(2)));
    assert!(all.kept().contains_key(&Key::new("n", "h")));
    assert!(!at_once(of_generation(2), None));
    assert!(all.kept().is_empty());
}

#[tokio::test]
async fn a_turn_of_a_deleted_autoscaler_leaves_nothing() {
    let harness = Harness::new(played(2)).await;
    let hpa: HorizontalPodAutoscaler = object(autoscaler(cpu(40)));
    let mut turn = Turn::new(&hpa, now());
    harness.autoscalers.scale(&hpa.metadata.key(), &mut turn).await;
    let said: Vec<&str> = turn.events.iter().map(|event| event.message.as_str()).collect();
    assert_eq!(said, ["HPA n/h was deleted during reconciliation"]);
    assert!(!turn.scaled && harness.autoscalers.kept().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_turn_waits_for_the_status_of_the_turn_before_it() {
    let mut all = played(2);
    let status = "/apis/autoscaling/v2/namespaces/n/horizontalpodautoscalers/h/status";
    all.answers.insert(status.into(), (200, json!({"metadata": {"resourceVersion": "2"}})));
    let list = json!({"metadata": {"resourceVersion": "1"}, "items": [autoscaler(cpu(80))]});
    all.answers.insert("/apis/autoscaling/v2/horizontalpodautoscalers".into(), (200, list));
    let harness = Harness::new(all).await;
    let (all, key) = (&harness.autoscalers, Key::new("n", "h"));
    all.autoscalers.synced().await;
    all.remember(&key);
    all.handle(&key).await;
    assert_eq!(all.with(&key, |kept| kept.wrote), Some(Some(2)));
    // The informer is at revision 1.
    all.handle(&key).await;
    let page = measured(&harness);
    let skips = r#"stale_sync_skips_total{group="autoscaling",resource="horizontalpodautoscalers"} 1"#;
    assert!(page.contains(skips), "{page}");
    assert!(page.contains("reconciliations_total{action=\"none\",error=\"none\"} 1\n"), "{page}");
    all.with(&key, |kept| kept.wrote = Some(1));
    all.handle(&key).await;
    let page = measured(&harness);
    assert!(page.contains(skips), "{page}");
    assert!(page.contains("reconciliations_total{action=\"none\",error=\"none\"} 2\n"), "{page}");
}

#[tokio::test]
async fn a_status_is_about_the_generation_that_saw_the_target() {
    let observed = async |played: Played, observed: i64| {
        let mut hpa = autoscaler(cpu(80));
        hpa["status"] = json!({"observedGeneration": observed});
        let text = turn(played, hpa).await;
        let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        last["observedGeneration"].clone()
    };
    assert_eq!(observed(played(2), 2).await, 3);
    let mut unreadable = played(2);
    unreadable.answers.remove(SCALE);
    assert_eq!(observed(unreadable, 2).await, 2);
}
