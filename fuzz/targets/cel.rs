//! Untrusted expressions: any text compiles or is refused, and what compiles is evaluated within its budget.

#![no_main]

use kaji_cel::{
    Decl, Env, Value,
    admission::{self, Setting},
};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

const LIMIT: u64 = 20_000;

static DATA: LazyLock<serde_json::Value> = LazyLock::new(|| {
    serde_json::json!({"n": 3, "d": 1.5, "s": "abc", "b": true, "l": [1, 2, 3], "m": {"a": "x", "b": "y"}, "z": null,
        "o": [{"k": "a", "v": 1}, {"k": "b"}]})
});

fuzz_target!(|text: &str| {
    let admitting = admission::env(Setting { params: true, authorizer: true, variables: true, making_objects: true });
    if let Ok(program) = admitting.compile(text) {
        let vars = vec![Some(Value::any(&DATA)); admission::SLOTS];
        let (result, cost) = program.eval(&vars, LIMIT);
        assert!(cost <= LIMIT || result.is_err(), "{cost}");
        drop(result.map(|value| value.to_json()));
    }
    let decl = Decl::any();
    let Ok(program) = Env::new().variable("self", decl.clone()).compile(text) else { return };
    let this = Value::of_json(&DATA, &decl).expect("any data is a value");
    let (result, cost) = program.eval(&[Some(this)], LIMIT);
    assert!(cost <= LIMIT || result.is_err(), "{cost}");
});
