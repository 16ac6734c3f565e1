//! Protobuf bodies: what decodes encodes, and decodes to the same.

#![no_main]

use kaji_schema::{protobuf, types};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(envelope) = protobuf::open(data) else { return };
    let (group, version) = envelope.api_version.rsplit_once('/').unwrap_or(("", &envelope.api_version));
    let schema = types::for_gvk(group, version, &envelope.kind)
        .unwrap_or_else(|| types::for_gvk("", "v1", "Pod").expect("pods are built in"));
    let Ok(value) = protobuf::decode(&schema, envelope.raw) else { return };
    let encoded = protobuf::encode(&schema, &value).expect("what was decoded encodes");
    let again = protobuf::decode(&schema, &encoded).expect("what was encoded decodes");
    assert_eq!(again, value);
});
