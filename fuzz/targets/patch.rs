//! The patch formats: a document and a patch, both untrusted.

#![no_main]

use kaji_meta::budget::Work;
use kaji_schema::{patch, types};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|data: &[u8]| {
    let Some(middle) = data.iter().position(|b| *b == 0) else { return };
    let parse = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).ok();
    let (Some(document), Some(change)) = (parse(&data[..middle]), parse(&data[middle + 1..])) else { return };
    let _ = patch::json_patch(&mut document.clone(), &change, &Work::unbounded());
    let mut merged = document.clone();
    patch::merge_patch(&mut merged, &change);
    // Twice is as good as once.
    let once = merged.clone();
    patch::merge_patch(&mut merged, &change);
    assert_eq!(merged, once);
    let pod = types::for_gvk("", "v1", "Pod").expect("pods are built in");
    let _ = patch::strategic_merge(pod.get(), &document, &change);
});
