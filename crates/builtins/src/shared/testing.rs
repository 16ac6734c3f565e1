//! What the kinds' tests share: printing of results, over the helpers of `kaji_resource::testing`.

use kaji_meta::{SeededRandom, Status, field::Error};
use kaji_resource::ResourceDef;
pub use kaji_resource::testing::{FakeApi, TestContext};
use serde_json::Value;
use std::sync::Arc;

/// Dependencies with a fixed clock and seed.
pub fn deps() -> crate::Deps {
    let now = "2026-01-02T03:04:05Z".parse().unwrap();
    crate::Deps::new(Arc::new(kaji_meta::ManualClock::new(now)), Arc::new(SeededRandom::new(7)))
}

/// Every message on its own line.
pub fn show(errors: &[Error]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn storage(def: &ResourceDef) -> String {
    def.storage_version().name.to_string()
}

/// The object after defaulting and preparation, as pretty JSON.
pub fn created(def: &ResourceDef, object: Value) -> String {
    serde_json::to_string_pretty(&create(def, object).0).unwrap()
}

/// The errors of creating the object (defaulted and prepared before), one a line.
pub fn create_errors(def: &ResourceDef, object: Value) -> String {
    create(def, object).1
}

fn create(def: &ResourceDef, mut object: Value) -> (Value, String) {
    let (test, version) = (TestContext::default(), storage(def));
    def.hooks.default(&version, &mut object);
    let seen = object.clone();
    let ctx = test.ctx(&seen, "", &version);
    def.hooks.prepare_create(&ctx, &mut object);
    let errors = show(&def.hooks.validate_create(&ctx, &object));
    (object, errors)
}

/// The warnings about creating the object, one a line.
pub fn warnings(def: &ResourceDef, object: &Value) -> String {
    let (test, version) = (TestContext::default(), storage(def));
    def.hooks.warnings(&test.ctx(object, "", &version), object, None).join("\n")
}

/// The warnings of changing `old` to `new`, one a line.
pub fn update_warnings(def: &ResourceDef, new: &Value, old: &Value) -> String {
    let (test, version) = (TestContext::default(), storage(def));
    def.hooks.warnings(&test.ctx(new, "", &version), new, Some(old)).join("\n")
}

/// The errors of changing `old` to `new` (both defaulted, `new` prepared), one a line.
pub fn update_errors(def: &ResourceDef, subresource: &str, new: Value, old: Value) -> String {
    update(def, subresource, new, old).1
}

/// The object after an update's defaulting and preparation, and its errors.
pub fn update(def: &ResourceDef, subresource: &str, mut new: Value, mut old: Value) -> (Value, String) {
    let (test, version) = (TestContext::default(), storage(def));
    def.hooks.default(&version, &mut new);
    def.hooks.default(&version, &mut old);
    let seen = new.clone();
    let ctx = test.ctx(&seen, subresource, &version);
    def.hooks.prepare_update(&ctx, &mut new, &old);
    let errors = show(&def.hooks.validate_update(&ctx, &new, &old));
    (new, errors)
}

/// The table's row, cells parted by ` | `. The time is 2026-01-02T03:04:05Z.
pub fn row(def: &ResourceDef, object: &Value) -> String {
    let cells = def.hooks.row(&storage(def), object, TestContext::default().now);
    cells
        .iter()
        .map(|c| c.as_str().map_or_else(|| c.to_string(), str::to_owned))
        .collect::<Vec<_>>()
        .join(" | ")
}

/// Creates an object of a review kind, or calls the subresource of a kind without an object.
pub fn call(test: &TestContext, def: &ResourceDef, body: Value) -> Result<(u16, Value), Status> {
    let seen = body.clone();
    let ctx = test.ctx(&seen, "", "v1");
    let request = kaji_resource::CallRequest {
        verb: kaji_resource::Verb::Create,
        body,
        object: None,
        query: &Default::default(),
        delete_options: None,
    };
    let answer = futures_util::FutureExt::now_or_never(def.hooks.calls().call(&ctx, request));
    answer.expect("the fake API never waits")
}
