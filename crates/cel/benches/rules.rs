//! What judging a request by a typical rule of an admission policy costs.
//!
//! `cargo bench -p kaji-cel` prints nanoseconds an evaluation.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints its figures")]

use kaji_cel::{
    PER_CALL_LIMIT, Session, Value,
    admission::{self, Returns, Setting},
};
use serde_json::json;
use std::{hint::black_box, time::Instant};

fn measure(what: &str, mut run: impl FnMut()) {
    const ROUNDS: u32 = 100_000;
    (0..ROUNDS / 10).for_each(|_| run());
    let started = Instant::now();
    (0..ROUNDS).for_each(|_| run());
    println!("{what}: {} ns", started.elapsed().as_nanos() / u128::from(ROUNDS));
}

fn main() {
    let container = |name: &str| json!({"name": name, "image": "registry.example.com/app:1.2.3", "resources": {"limits": {"memory": "1Gi"}}});
    let object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "labels": {"app": "web", "team": "a"}},
        "spec": {"replicas": 3, "template": {"spec": {"containers": [container("a"), container("b"), container("c")]}}}});
    let request = json!({"operation": "CREATE", "userInfo": {"username": "alice"}});
    let mut env =
        admission::env(Setting { params: true, authorizer: true, variables: true, making_objects: false });
    admission::name(&mut env, "containers", "object.spec.template.spec.containers").unwrap();
    let named = env.named();
    for (what, text) in [
        ("one field", "object.spec.replicas <= 5"),
        (
            "labels",
            "has(object.metadata.labels) && 'team' in object.metadata.labels && object.metadata.labels.team.matches('^[a-z]+$')",
        ),
        (
            "images of three containers",
            "variables.containers.all(c, c.image.startsWith('registry.example.com/'))",
        ),
        (
            "limits of three containers",
            "variables.containers.all(c, has(c.resources.limits) && quantity(c.resources.limits.memory).isLessThan(quantity('2Gi')))",
        ),
        ("username", "request.operation != 'DELETE' || request.userInfo.username.startsWith('system:')"),
    ] {
        let program = admission::compile(&env, text, Returns::Bool).unwrap();
        measure(what, || {
            let mut vars = vec![None; admission::SLOTS];
            vars[admission::OBJECT] = Some(Value::any(&object));
            vars[admission::REQUEST] = Some(Value::any(&request));
            let mut session = Session::new(vars, &named);
            let (result, cost) = program.eval_in(&mut session, PER_CALL_LIMIT);
            assert!(matches!(result, Ok(Value::Bool(true))) && cost > 0);
            black_box(cost);
        });
    }
}
