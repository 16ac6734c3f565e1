//! How long a cluster takes from nothing to the answer to its first request.
//!
//! `cargo bench -p kaji-testenv` prints milliseconds: the median and the slowest of fifty, one after the other.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints its figures")]

use k8s_openapi::api::core::v1::ConfigMap;
use kaji_testenv::{Builder, TestEnv};
use kube::{Api, api::PostParams};
use std::time::{Duration, Instant};

const ROUNDS: usize = 50;

async fn once(builder: Builder) -> Duration {
    let started = Instant::now();
    let env = builder.start().await.unwrap();
    let maps: Api<ConfigMap> = Api::default_namespaced(env.client());
    let mut map = ConfigMap::default();
    map.metadata.name = Some("first".into());
    maps.create(&PostParams::default(), &map).await.unwrap();
    let took = started.elapsed();
    env.stop().await;
    took
}

#[tokio::main]
async fn main() {
    let all = [
        ("an API server", TestEnv::builder()),
        ("with every control loop", TestEnv::builder().controllers(["*"])),
        ("with a port", TestEnv::builder().listen()),
    ];
    for (what, builder) in all {
        once(builder.clone()).await;
        let mut times = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            times.push(once(builder.clone()).await);
        }
        times.sort();
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        println!("{what}: {:.1} ms, at most {:.1} ms", millis(times[ROUNDS / 2]), millis(times[ROUNDS - 1]));
    }
}
