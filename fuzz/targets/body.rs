//! JSON bodies: what is read fits its type, or is refused.

#![no_main]

use kaji_schema::{decode, managed, types};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(parsed) = decode::parse(data) else { return };
    let mut value = parsed.value;
    if let Some(fields) = value.pointer("/metadata/managedFields") {
        let _ = managed::check_entries(fields);
    }
    let pod = types::for_gvk("", "v1", "Pod").expect("pods are built in");
    if decode::typed(pod.get(), &mut value).is_ok() {
        // The form that is written is stable.
        let once = value.clone();
        decode::typed(pod.get(), &mut value).expect("what was typed is typed");
        assert_eq!(value, once);
    }
});
