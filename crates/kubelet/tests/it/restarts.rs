//! The delays before containers are started again.

use crate::fake::Fake;
use crate::lifecycle::{Run, pod, ready, waiting};
use kaji_containers::RuntimeError;
use serde_json::{Value, json};

const DELAY: &str = "back-off 10s restarting failed container=c pod=p_n(u)";

fn restarted(times: i64) -> impl Fn(&Value) -> bool {
    move |status| status["containerStatuses"][0]["restartCount"] == times && ready(status)
}

async fn delay(run: &Run) -> String {
    let status = run.until("waits", |status| waiting(status)["reason"] == "CrashLoopBackOff").await;
    waiting(&status)["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_long_run_makes_the_next_delay_the_first_one_again() {
    let run = Run::start(Fake::new(), &pod(json!({"containers": [{"name": "c", "image": "i"}]})));
    run.until("ready", ready).await;
    run.fake.runtime.exit("c", 1);
    run.until("restarted at once", restarted(1)).await;
    run.fake.clock.advance(jiff::SignedDuration::from_secs(601));
    run.fake.runtime.exit("c", 1);
    run.until("restarted at once after a long run", restarted(2)).await;
    run.fake.runtime.exit("c", 1);
    assert_eq!(delay(&run).await, DELAY);
}

#[tokio::test]
async fn a_container_that_is_killed_for_a_probe_is_delayed_by_the_run_before() {
    let probe = json!({"exec": {"command": ["alive"]}, "periodSeconds": 1, "failureThreshold": 1});
    let containers = json!([{"name": "c", "image": "i", "livenessProbe": probe}]);
    let run = Run::start(Fake::new(), &pod(json!({"containers": containers})));
    run.until("ready", ready).await;
    let fail = || {
        let late = RuntimeError::DeadlineExceeded("late".into());
        run.fake.runtime.state.lock().unwrap().failures.push(("exec", late));
    };
    // The first kill follows no end at all, and the second one the end that has no delay yet.
    for times in [1, 2] {
        fail();
        run.until("restarted at once", restarted(times)).await;
    }
    fail();
    assert_eq!(delay(&run).await, DELAY);
}
