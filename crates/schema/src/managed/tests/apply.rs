//! Merging, ordering, pruning, conflicts.

use super::*;

#[test]
fn scalars_conflict_and_are_shared() {
    let mut s = Server::custom();
    s.apply("a", json!({"string": "1", "number": 1}));
    s.check(&expect![[r#"
        {"number":1,"string":"1"}
        Apply a v1 @01: {"f:number":{},"f:string":{}}"#]]);
    // The same value is shared, numbers by value.
    s.apply("b", json!({"number": 1.0}));
    s.check(&expect![[r#"
        {"number":1,"string":"1"}
        Apply b v1 @-: {"f:number":{}}
        Apply a v1 @01: {"f:number":{},"f:string":{}}"#]]);
    expect![[r#"
        409 "Conflict": Apply failed with 1 conflict: conflict with "a": .string
          FieldManagerConflict .string (conflict with "a")"#]]
    .assert_eq(&s.refused("b", json!({"string": "2", "number": 1})));
    expect![[r#"
        409 "Conflict": Apply failed with 1 conflict: conflict with "b": .number
          FieldManagerConflict .number (conflict with "b")"#]]
    .assert_eq(&s.refused("a", json!({"string": "1", "number": 2})));
    s.force("b", json!({"string": "2", "number": 2}));
    s.check(&expect![[r#"
        {"number":2,"string":"2"}
        Apply b v1 @05: {"f:number":{},"f:string":{}}"#]]);
    // What only an updater changed conflicts too.
    s.update("u", json!({"string": "3", "number": 2}));
    s.check(&expect![[r#"
        {"number":2,"string":"3"}
        Apply b v1 @05: {"f:number":{}}
        Update u v1 @06: {"f:string":{}}"#]]);
    expect![[r#"
        409 "Conflict": Apply failed with 1 conflict: conflict with "u" using v1: .string
          FieldManagerConflict .string (conflict with "u" using v1)"#]]
    .assert_eq(&s.refused("b", json!({"string": "2", "number": 5})));
    s.update("v", json!({"string": "3", "number": 7}));
    expect![[r#"
        409 "Conflict": Apply failed with 2 conflicts: conflicts with "u" using v1:
        - .string
        conflicts with "v" using v1:
        - .number
          FieldManagerConflict .string (conflict with "u" using v1)
          FieldManagerConflict .number (conflict with "v" using v1)"#]]
    .assert_eq(&s.refused("b", json!({"string": "2", "number": 5})));
}

#[test]
fn removes_fields_no_longer_applied_unless_owned() {
    let mut s = Server::custom();
    s.apply(
        "a",
        json!({"string": "1", "map": {"x": "1", "y": "1", "z": "1"}, "struct": {"a": "1", "b": "1"}}),
    );
    s.apply("b", json!({"map": {"x": "1"}}));
    s.update(
        "u",
        json!({"string": "1", "map": {"x": "1", "y": "2", "z": "1"}, "struct": {"a": "1", "b": "1"}}),
    );
    s.apply("a", json!({"struct": {"b": "1"}}));
    s.check(&expect![[r#"
        {"map":{"x":"1","y":"2"},"struct":{"b":"1"}}
        Apply b v1 @-: {"f:map":{"f:x":{}}}
        Apply a v1 @04: {"f:struct":{"f:b":{}}}
        Update u v1 @03: {"f:map":{"f:y":{}}}"#]]);
    s.apply("a", json!({}));
    s.check(&expect![[r#"
        {"map":{"x":"1","y":"2"}}
        Apply b v1 @-: {"f:map":{"f:x":{}}}
        Update u v1 @03: {"f:map":{"f:y":{}}}"#]]);
    s.apply("b", json!({}));
    s.check(&expect![[r#"
        {"map":{"y":"2"}}
        Update u v1 @03: {"f:map":{"f:y":{}}}"#]]);
}

#[test]
fn list_items_belong_to_their_appliers() {
    let mut s = Server::custom();
    s.apply("a", json!({"list": [{"name": "a", "value": "1"}, {"name": "b", "value": "1"}]}));
    s.apply("b", json!({"list": [{"name": "c"}, {"name": "b"}]}));
    s.check(&expect![[r#"
        {"list":[{"name":"a","value":"1"},{"name":"c"},{"name":"b","value":"1"}]}
        Apply a v1 @01: {"f:list":{"k:{\"name\":\"a\"}":{".":{},"f:name":{},"f:value":{}},"k:{\"name\":\"b\"}":{".":{},"f:name":{},"f:value":{}}}}
        Apply b v1 @02: {"f:list":{"k:{\"name\":\"b\"}":{".":{},"f:name":{}},"k:{\"name\":\"c\"}":{".":{},"f:name":{}}}}"#]]);
    expect![[r#"
        409 "Conflict": Apply failed with 2 conflicts: conflicts with "a":
        - .list[name="a"].value
        - .list[name="b"].value
          FieldManagerConflict .list[name="a"].value (conflict with "a")
          FieldManagerConflict .list[name="b"].value (conflict with "a")"#]]
    .assert_eq(&s.refused("b", json!({"list": [{"name": "a", "value": "2"}, {"name": "b", "value": "3"}]})));
    s.apply("a", json!({"list": [{"name": "b"}]}));
    s.check(&expect![[r#"
        {"list":[{"name":"c"},{"name":"b"}]}
        Apply b v1 @02: {"f:list":{"k:{\"name\":\"b\"}":{".":{},"f:name":{}},"k:{\"name\":\"c\"}":{".":{},"f:name":{}}}}
        Apply a v1 @04: {"f:list":{"k:{\"name\":\"b\"}":{".":{},"f:name":{}}}}"#]]);
    // The last owner takes the list along.
    s.apply("a", json!({})).apply("b", json!({}));
    s.check(&expect![[r#"
        {}
    "#]]);
}

#[test]
fn sets_merge() {
    let mut s = Server::custom();
    s.apply("a", json!({"set": ["a", "c"]})).apply("b", json!({"set": ["b", "c", "d"]}));
    s.check(&expect![[r#"
        {"set":["a","b","c","d"]}
        Apply a v1 @01: {"f:set":{"v:\"a\"":{},"v:\"c\"":{}}}
        Apply b v1 @02: {"f:set":{"v:\"b\"":{},"v:\"c\"":{},"v:\"d\"":{}}}"#]]);
    s.apply("a", json!({"set": ["a"]}));
    s.check(&expect![[r#"
        {"set":["a","b","c","d"]}
        Apply a v1 @01: {"f:set":{"v:\"a\"":{}}}
        Apply b v1 @02: {"f:set":{"v:\"b\"":{},"v:\"c\"":{},"v:\"d\"":{}}}"#]]);
    s.apply("b", json!({"set": ["d", "b"]}));
    s.check(&expect![[r#"
        {"set":["a","d","b"]}
        Apply a v1 @01: {"f:set":{"v:\"a\"":{}}}
        Apply b v1 @04: {"f:set":{"v:\"b\"":{},"v:\"d\"":{}}}"#]]);
}

#[test]
fn atomic_values_are_owned_whole() {
    let mut s = Server::custom();
    s.apply("a", json!({"atomicList": ["a", "b"], "atomicMap": {"x": "1"}}));
    expect![[r#"
        409 "Conflict": Apply failed with 2 conflicts: conflicts with "a":
        - .atomicList
        - .atomicMap
          FieldManagerConflict .atomicList (conflict with "a")
          FieldManagerConflict .atomicMap (conflict with "a")"#]]
    .assert_eq(&s.refused("b", json!({"atomicList": ["a", "c"], "atomicMap": {"y": "1"}})));
    s.force("b", json!({"atomicList": ["a", "c"], "atomicMap": {"y": "1"}}));
    s.check(&expect![[r#"
        {"atomicList":["a","c"],"atomicMap":{"y":"1"}}
        Apply b v1 @03: {"f:atomicList":{},"f:atomicMap":{}}"#]]);
}

#[test]
fn order_follows_the_configuration() {
    let order = |live: &[&str], config: &[&str]| {
        let mut s = Server::custom();
        s.update("u", json!({"set": live})).force("a", json!({"set": config}));
        s.live["set"].as_array().unwrap().iter().filter_map(Value::as_str).collect::<String>()
    };
    let got = [
        order(&["a", "b", "c"], &["c", "a"]),
        order(&["a", "b", "c"], &["d", "b"]),
        order(&["a", "b", "c", "d"], &["d", "a", "x"]),
        order(&["1", "2", "3", "4", "5"], &["3", "y", "1"]),
        order(&["a", "b"], &["c", "d"]),
        order(&["a", "b", "c", "d", "e"], &["e", "d", "c", "b", "a"]),
        order(&["b", "x", "a"], &["a", "b"]),
        order(&["a", "b", "a", "c"], &["c", "a"]),
        order(&["a", "b", "a", "c"], &["c"]),
        order(&[], &["b", "a"]),
    ];
    expect![[r#"
        bca
        adbc
        bcdax
        2345y1
        abcd
        edcba
        xab
        bca
        abac
        ba"#]]
    .assert_eq(&got.join("\n"));
}

#[test]
fn distinguishes_null_from_empty() {
    let mut s = Server::custom();
    s.apply("a", json!({"map": {}, "list": [], "struct": {}, "string": null}));
    s.check(&expect![[r#"
        {"list":[],"map":{},"string":null,"struct":{}}
        Apply a v1 @01: {"f:map":{},"f:string":{},"f:struct":{}}"#]]);
    s.apply("b", json!({"map": {"x": "1"}, "list": [{"name": "n"}]}));
    s.check(&expect![[r#"
        {"list":[{"name":"n"}],"map":{"x":"1"},"string":null,"struct":{}}
        Apply a v1 @01: {"f:map":{},"f:string":{},"f:struct":{}}
        Apply b v1 @02: {"f:list":{"k:{\"name\":\"n\"}":{".":{},"f:name":{}}},"f:map":{"f:x":{}}}"#]]);
    s.apply("a", json!({"map": null, "list": null}));
    s.check(&expect![[r#"
        {"list":[{"name":"n"}],"map":{"x":"1"}}
        Apply b v1 @02: {"f:list":{"k:{\"name\":\"n\"}":{".":{},"f:name":{}}},"f:map":{"f:x":{}}}
        Apply a v1 @03: {"f:list":{},"f:map":{}}"#]]);
}

/// As structured-merge-diff 6.4.2: an empty container is no remains of one with members.
#[test]
fn what_is_emptied_is_null() {
    let mut s = Server::custom();
    s.apply("a", json!({"map": {"x": "1"}, "struct": {"a": "1"}, "list": [{"name": "n"}]}));
    s.apply("a", json!({"map": null, "struct": {}, "list": []}));
    s.check(&expect![[r#"
        {"map":null,"struct":null}
        Apply a v1 @02: {"f:map":{},"f:struct":{}}"#]]);
}

#[test]
fn undeclared_fields_are_merged_deeply_where_kept() {
    let mut s = Server::custom();
    s.apply("a", json!({"any": {"x": {"y": 1, "l": [1, 2]}}, "open": {"known": "k", "o": {"p": 1}}}));
    s.apply("b", json!({"any": {"x": {"z": 1}}, "open": {"o": {"q": 1}}}));
    s.check(&expect![[r#"
        {"any":{"x":{"l":[1,2],"y":1,"z":1}},"open":{"known":"k","o":{"p":1,"q":1}}}
        Apply a v1 @01: {"f:any":{"f:x":{".":{},"f:l":{},"f:y":{}}},"f:open":{"f:known":{},"f:o":{".":{},"f:p":{}}}}
        Apply b v1 @02: {"f:any":{"f:x":{".":{},"f:z":{}}},"f:open":{"f:o":{".":{},"f:q":{}}}}"#]]);
    expect![[r#"
        409 "Conflict": Apply failed with 1 conflict: conflict with "a": .any.x
          FieldManagerConflict .any.x (conflict with "a")"#]]
    .assert_eq(&s.refused("b", json!({"any": {"x": 1}})));
    s.force("b", json!({"any": {"x": 1}}));
    s.check(&expect![[r#"
        {"any":{"x":1},"open":{"known":"k","o":{"p":1}}}
        Apply a v1 @01: {"f:open":{"f:known":{},"f:o":{".":{},"f:p":{}}}}
        Apply b v1 @04: {"f:any":{"f:x":{}}}"#]]);
}

#[test]
fn configurations_that_do_not_fit() {
    let mut s = Server::custom();
    s.update("u", json!({"metadata": {"namespace": "ns"}}));
    let mut got = Vec::new();
    for config in [
        json!({"unknown": 1}),
        json!({"struct": {"unknown": 1}, "list": [{"name": "a", "other": 1}]}),
        json!({"string": 1}),
        json!({"string": {"a": [true, null, 1.5]}}),
        json!({"number": "1"}),
        json!({"bool": "true"}),
        json!({"map": ["x"]}),
        json!({"list": {"x": 1}}),
        json!({"list": [{"name": "a"}, {"name": "a"}]}),
        json!({"set": ["a", "a"]}),
        json!({"list": [{"value": "a"}]}),
        json!({"ports": [{"port": 80}, {"port": 80, "protocol": "TCP"}]}),
        json!({"list": [{"name": "a", "set": [1]}]}),
        json!({"atomicList": [1]}),
        json!({"atomicMap": {"x": 1}}),
        json!({"metadata": {"unknown": "x"}}),
        json!({"metadata": {"namespace": "ns", "managedFields": []}}),
        json!({"kind": "Other"}),
        json!({"apiVersion": "v9"}),
    ] {
        got.push(s.refused("a", config));
    }
    expect![[r#"
        500 "": failed to create typed patch object (/x; /v1, Kind=Thing): .unknown: field not declared in schema
        500 "": failed to create typed patch object (/x; /v1, Kind=Thing): errors:
          .list[name="a"].other: field not declared in schema
          .struct.unknown: field not declared in schema
        500 "": failed to create typed patch object (/x; /v1, Kind=Thing): .string: expected string, got &value.valueUnstructured{Value:1}
        500 "": failed to create typed patch object (/x; /v1, Kind=Thing): .string: expected string, got &value.valueUnstructured{Value:map[string]interface {}{"a":[]interface {}{true, interface {}(nil), 1.5}}}
        500 "": failed to create typed patch object (/x; /v1, Kind=Thing): .number: expected numeric (int or float), got string
        500 "": failed to create typed patch object (/x; /v1, Kind=Thing): .bool: expected boolean, got &{true}
        500 "": failed to create typed patch object (/x; /v1, Kind=Thing): .map: expected map, got &{[x]}
        500 "": failed to create typed patch object (/x; /v1, Kind=Thing): .list: expected list, got &{map[x:1]}
        500 "": failed to create typed patch object (/x; /v1, Kind=Thing): .list: duplicate entries for key [name="a"]
        500 "": failed to create typed patch object (/x; /v1, Kind=Thing): .set: duplicate entries for key [="a"]
        500 "": failed to create typed patch object (/x; /v1, Kind=Thing): .list: element 0: associative list with keys has an element that omits all key fields ["name"] (and doesn't have default values for any key fields)
        500 "": failed to create typed patch object (/x; /v1, Kind=Thing): .ports: duplicate entries for key [port=80,protocol="TCP"]
        500 "": failed to create typed patch object (/x; /v1, Kind=Thing): .list[name="a"].set[=1]: expected string, got &value.valueUnstructured{Value:1}
        500 "": failed to create typed patch object (/x; /v1, Kind=Thing): .atomicList[0]: expected string, got &value.valueUnstructured{Value:1}
        500 "": failed to create typed patch object (/x; /v1, Kind=Thing): .atomicMap.x: expected string, got &value.valueUnstructured{Value:1}
        500 "": failed to create typed patch object (/x; /v1, Kind=Thing): .metadata.unknown: field not declared in schema
        400 "BadRequest": metadata.managedFields must be nil
        400 "BadRequest": invalid object type: /v1, Kind=Other
        400 "BadRequest": invalid object type: /v9, Kind=Thing"#]].assert_eq(&got.join("\n"));
}

#[test]
fn first_apply_of_an_untracked_object() {
    let mut s = Server::custom();
    s.keep(json!({"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "x", "labels": {"a": "b"}}, "string": "1", "set": ["a"]}));
    expect![[r#"
        409 "Conflict": Apply failed with 1 conflict: conflict with "before-first-apply" using v1: .string
          FieldManagerConflict .string (conflict with "before-first-apply" using v1)"#]]
    .assert_eq(&s.refused("k", json!({"string": "2"})));
    s.apply("k", json!({"string": "1", "set": ["b"]}));
    s.check(&expect![[r#"
        {"metadata":{"labels":{"a":"b"}},"set":["a","b"],"string":"1"}
        Apply k v1 @02: {"f:set":{"v:\"b\"":{}},"f:string":{}}
        Update before-first-apply v1 @02: {"f:metadata":{"f:labels":{".":{},"f:a":{}}},"f:set":{".":{},"v:\"a\"":{}},"f:string":{}}"#]]);
}

#[test]
fn an_applied_empty_list_has_no_manager() {
    let mut s = Server::custom();
    s.apply("a", json!({"set": []}));
    s.check(&expect![[r#"
        {"set":[]}
    "#]]);
    // So to the next apply the object is one that nothing managed.
    s.apply("a", json!({"set": []}));
    s.check(&expect![[r#"
        {"set":[]}
        Update before-first-apply v1 @02: {"f:set":{}}"#]]);
}

#[test]
fn subresources_have_separate_managers() {
    let mut s = Server::custom();
    s.apply("a", json!({"string": "1"}));
    s.subresource = "status";
    s.apply("a", json!({"bool": true}));
    s.update("u", json!({"string": "1", "bool": true, "number": 1}));
    s.check(&expect![[r#"
        {"bool":true,"number":1,"string":"1"}
        Apply a v1 @01: {"f:string":{}}
        Apply a/status v1 @02: {"f:bool":{}}
        Update u/status v1 @03: {"f:number":{}}"#]]);
    s.subresource = "";
    expect![[r#"
        409 "Conflict": Apply failed with 2 conflicts: conflicts with "a" with subresource "status":
        - .bool
        conflicts with "u" with subresource "status" using v1:
        - .number
          FieldManagerConflict .bool (conflict with "a" with subresource "status")
          FieldManagerConflict .number (conflict with "u" with subresource "status" using v1)"#]]
    .assert_eq(&s.refused("b", json!({"bool": false, "number": 2})));
    // Not applying it as main resource leaves what was applied as status.
    s.apply("a", json!({}));
    s.check(&expect![[r#"
        {"bool":true,"number":1}
        Apply a/status v1 @02: {"f:bool":{}}
        Update u/status v1 @03: {"f:number":{}}"#]]);
}

#[test]
fn names_and_versions_have_no_owner() {
    let mut s = Server::custom();
    s.apply("", json!({"metadata": {"namespace": "ns", "labels": {"a": "b"}, "uid": "u", "resourceVersion": "5", "generation": 1}}));
    s.check(&expect![[r#"
        {"metadata":{"generation":1,"labels":{"a":"b"},"namespace":"ns","resourceVersion":"5"}}
        Apply unknown v1 @01: {"f:metadata":{"f:labels":{"f:a":{}}}}"#]]);
}

#[test]
fn broken_stored_entries_refuse_applies_only() {
    let mut s = Server::custom();
    s.keep(json!({"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "x", "managedFields": [{"manager": "m", "operation": "Nope"}]}}));
    expect![[r#"500 "": failed to decode managed fields: operation must be `Apply` or `Update`"#]]
        .assert_eq(&s.refused("a", json!({"string": "1"})));
    s.update("u", json!({"string": "1"}));
    s.check(&expect![[r#"
        {"string":"1"}
    "#]]);
}

#[test]
fn an_apply_that_creates_always_is_a_change() {
    let mut s = Server::custom();
    assert_eq!(s.try_apply("a", false, json!({})), Ok(true));
    assert_eq!(s.managed(), "");
    assert_eq!(s.try_apply("a", false, json!({})), Ok(false));
    let mut s = Server {
        live: json!({"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "x"}}),
        ..Server::custom()
    };
    assert_eq!(s.try_apply("a", false, json!({})), Ok(true));
}
