//! Frames, envelopes, what is left out, and what is refused.

use super::*;
use crate::types;
use expect_test::expect;
use serde_json::json;

fn pod() -> SchemaRef {
    types::for_gvk("", "v1", "Pod").unwrap()
}

/// The content of field `number`.
fn field(number: u16, content: &[u8]) -> Vec<u8> {
    let mut out = wire::Back::with_capacity(0);
    out.text(number, content);
    out.finish()
}

fn join(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

#[test]
fn zero_values_are_what_go_leaves_out() {
    let raw = encode(&pod(), &json!({})).unwrap();
    let back = decode(&pod(), &raw).unwrap();
    expect![[r#"{"metadata":{},"spec":{},"status":{}}"#]].assert_eq(&back.to_string());
    // Pointers keep what they point to, and fields that Go always writes stay.
    let container = json!({"name": "", "stdin": false, "securityContext": {"privileged": false}});
    let value = json!({"metadata": {"generation": 0, "deletionGracePeriodSeconds": 0, "creationTimestamp": null},
        "spec": {"hostNetwork": false, "enableServiceLinks": false, "containers": [container]}});
    let back = decode(&pod(), &encode(&pod(), &value).unwrap()).unwrap();
    expect![[r#"{"metadata":{"deletionGracePeriodSeconds":0},"spec":{"containers":[{"name":"","resources":{},"securityContext":{"privileged":false}}],"enableServiceLinks":false},"status":{}}"#]]
        .assert_eq(&back.to_string());
}

#[test]
fn repeated_fields_replace_or_join() {
    let name = |n: &str| field(1, &field(1, n.as_bytes()));
    let label =
        |k: &str, v: &str| field(1, &field(11, &join(&[&field(1, k.as_bytes()), &field(2, v.as_bytes())])));
    let raw = join(&[&name("a"), &label("k", "1"), &name("b"), &label("k", "2"), &label("l", "3")]);
    let back = decode(&pod(), &raw).unwrap();
    assert_eq!(back, json!({"metadata": {"name": "b", "labels": {"k": "2", "l": "3"}}}));
    let raw = join(&[&name("a"), &name("")]);
    assert_eq!(decode(&pod(), &raw).unwrap(), json!({"metadata": {}}));
}

#[test]
fn decodes_packed_unpacked_and_unknown_fields() {
    // spec.securityContext.supplementalGroups, packed and then not.
    let groups = join(&[&field(4, &[1, 2]), &[4 << 3, 3]]);
    // An unknown field of each wire type, with a group in a group.
    let unknown = [
        &[0xf8, 0x7f, 1][..],
        &[0xf9, 0x7f, 1, 2, 3, 4, 5, 6, 7, 8],
        &[0xfa, 0x7f, 1, 0],
        &[0xfd, 0x7f, 1, 2, 3, 4],
        &[0xfb, 0x7f, 0x0b, 0x08, 1, 0x0c, 0xfc, 0x7f],
    ]
    .concat();
    let raw = field(2, &join(&[&unknown, &field(14, &groups)]));
    let back = decode(&pod(), &raw).unwrap();
    assert_eq!(back, json!({"spec": {"securityContext": {"supplementalGroups": [1, 2, 3]}}}));
}

#[test]
fn rejects_malformed_messages() {
    let error = |raw: &[u8]| decode(&pod(), raw).unwrap_err().to_string();
    let deep = (0..60).fold(vec![], |inner, _| field(34, &join(&[&field(1, b"k"), &field(2, &inner)])));
    let props =
        types::lookup("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps").unwrap();
    let raw_json = |depth: usize| field(8, &field(1, &"[".repeat(depth).into_bytes()));
    let closed = |depth: usize| {
        let text = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        field(8, &field(1, text.as_bytes()))
    };
    let time = |seconds: u64| {
        let mut out = wire::Back::with_capacity(0);
        out.varint(seconds);
        out.tag(1, wire::VARINT);
        field(1, &field(8, &out.finish()))
    };
    let all = [
        error(&[0x0a]),
        error(&[0x0a, 5, 1]),
        error(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
        error(&[0xff; 11]),
        error(&[0x08, 1]),
        error(&[0x0a, 2, 0x08, 1]),
        error(&[0x00, 1]),
        error(&[0x0c]),
        error(&[0xff, 0x7f, 1]),
        error(&[0xfb, 0x7f, 1]),
        error(&time(300_000_000_000)),
        decode(&props, &deep).unwrap_err().to_string(),
        decode(&props, &raw_json(3)).unwrap_err().to_string(),
        decode(&props, &closed(100)).unwrap_err().to_string(),
        encode(&pod(), &json!({"spec": {"priority": "x"}})).unwrap_err().to_string(),
        encode(&pod(), &json!({"spec": {"containers": "é".repeat(90)}})).unwrap_err().to_string(),
    ];
    expect![[r#"
        unexpected EOF
        unexpected EOF
        proto: negative length found during unmarshaling
        proto: integer overflow
        proto: wrong wireType = 0 for field Metadata
        proto: wrong wireType = 0 for field Name
        proto: illegal tag 0 (wire type 0)
        proto: wiretype end group for non-group
        proto: illegal wireType 7
        unexpected EOF
        Time.MarshalJSON: year outside of range [0,9999]
        exceeded max depth
        EOF while parsing a list at line 1 column 3
        exceeded max depth
        "x" is not an integer
        "ééééééééééééééééééééééééééééééé... is not a list"#]]
    .assert_eq(&all.join("\n"));
    assert!(decode(&props, &closed(98)).is_ok());
}

#[test]
fn reads_and_writes_envelopes() {
    let sealed = seal("apps/v1", "Deployment", b"\x0a\x00");
    let envelope = open(&sealed).unwrap();
    assert_eq!((envelope.api_version.as_str(), envelope.kind.as_str()), ("apps/v1", "Deployment"));
    assert_eq!(envelope.raw, b"\x0a\x00");
    let error = |data: &[u8]| open(data).unwrap_err().to_string();
    let all = [
        error(b""),
        error(b"k8s\0"),
        error(b"{}"),
        error(b"k8s"),
        error(b"k8s\0\x0a\x05a"),
        error(b"k8s\0\x10\x01"),
    ];
    expect![[r#"
        empty data
        empty body
        provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]
        provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]
        unexpected EOF
        proto: wrong wireType = 0 for field Raw"#]]
    .assert_eq(&all.join("\n"));
}

#[test]
fn encodes_lists_in_pieces() {
    let schema = types::for_gvk("", "v1", "ConfigMap").unwrap();
    let items = [json!({"metadata": {"name": "a"}}), json!({"data": {"k": "v"}})];
    let metadata = json!({"resourceVersion": "7", "remainingItemCount": 2});
    let elements: Vec<Vec<u8>> = items.iter().map(|v| element(&schema, v).unwrap()).collect();
    let (head, tail) = list("v1", "ConfigMapList", &metadata, elements.concat().len()).unwrap();
    let whole = json!({"metadata": metadata, "items": items});
    let kind = types::for_gvk("", "v1", "ConfigMapList").unwrap();
    assert_eq!(
        [head, elements.concat(), tail].concat(),
        object(&kind, "v1", "ConfigMapList", &whole).unwrap()
    );
}

#[test]
fn encodes_watch_events() {
    let framed = event("ADDED", b"object");
    assert_eq!(&framed[..4], (framed.len() as u32 - 4).to_be_bytes());
    let schema = types::lookup("io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent").unwrap();
    let framed = event("ADDED", b"{\"a\":1}");
    assert_eq!(decode(&schema, &framed[4..]).unwrap(), json!({"type": "ADDED", "object": {"a": 1}}));
}

#[test]
fn every_type_in_the_table() {
    for entry in types::entries() {
        let schema = SchemaRef::Named(entry);
        if schema.properties.is_none() {
            continue;
        }
        let raw = encode(&schema, &json!({})).unwrap_or_else(|e| panic!("{}: {e}", entry.name()));
        let back = decode(&schema, &raw).unwrap_or_else(|e| panic!("{}: {e}", entry.name()));
        assert_eq!(encode(&schema, &back).unwrap(), raw, "{}", entry.name());
    }
}

/// Upstream reads the first JSON value of `fieldsV1`, when it needs the set; bytes that are none make the set unusable, not
/// the object.
#[test]
fn what_follows_the_first_value_of_a_field_set_is_ignored() {
    let read = |text: &[u8]| {
        let raw = field(1, &field(17, &field(7, &field(1, text))));
        decode(&pod(), &raw).unwrap()["metadata"]["managedFields"][0].take()
    };
    let set = json!({"fieldsV1": {"f:a": {}}});
    for text in [
        &br#"{"f:a":{}}"#[..],
        b"\n{\"f:a\":{}}\n \t",
        br#"{"f:a":{}}garbage"#,
        br#"{"f:a":{}}{"f:b":{}}"#,
        br#"{"f:a":{}}]"#,
        b"{\"f:a\":{}}\0\xff",
    ] {
        assert_eq!(read(text), set, "{}", String::from_utf8_lossy(text));
    }
    assert_eq!(read(b"{\"f:\xff\":{}}\xff"), json!({"fieldsV1": {"f:\u{fffd}": {}}}));
    assert_eq!(read(b"nullx"), json!({}));
    let deep = [br#"{"f:a":"#.repeat(110), b"{}".to_vec(), b"}".repeat(110)].concat();
    let deeper = [br#"{"f:a":"#.repeat(1000), b"{}".to_vec(), b"}".repeat(1000)].concat();
    for text in [&b""[..], b" ", b"\0", b"garbage", br#"{"f:a":{"#, br#"{"f:a":{},}"#, &deep, &deeper] {
        let entry = json!([{"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
            "fieldsV1": read(text)["fieldsV1"]}]);
        assert!(crate::managed::check_entries(&entry).is_err(), "{}", String::from_utf8_lossy(text));
    }
}

/// Two bytes a container, each of which becomes a map with defaults.
#[test]
fn refuses_what_takes_much_more_memory_than_bytes() {
    let raw = field(2, &field(2, &[]).repeat(1_000_000));
    let refused = decode(&pod(), &raw).unwrap_err();
    assert!(matches!(refused, Error::Large(_)), "{refused}");
    let some = field(2, &field(2, &[]).repeat(1_000));
    assert_eq!(decode(&pod(), &some).unwrap()["spec"]["containers"].as_array().unwrap().len(), 1_000);
}
