//! Tests of the patches.

use expect_test::{Expect, expect};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::fieldset::tests::schema;
use crate::schema::SchemaRef;
use crate::types;
use kaji_meta::Work;

fn show(result: Result<Value, Status>) -> String {
    match result {
        Ok(v) => v.to_string(),
        Err(s) => format!("{} {:?}: {}", s.code, s.reason.as_str(), s.message),
    }
}

fn json(target: Value, patch: Value) -> String {
    let mut target = target;
    show(json_patch(&mut target, &patch, &Work::unbounded()).map(|()| target))
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn applies_json_patches() {
    let doc = || json!({"a": {"b": [1, 2, 3], "n": null}, "c/d": 1, "e~f": 2});
    let op = |v: Value| json(doc(), json!([v]));
    let got = [
        op(json!({"op": "add", "path": "/a/x", "value": {"y": 1}})),
        op(json!({"op": "add", "path": "/a/b/1", "value": 9})),
        op(json!({"op": "add", "path": "/a/b/-", "value": 9})),
        op(json!({"op": "add", "path": "/a/b/-1", "value": 9})),
        op(json!({"op": "add", "path": "/a/b/3", "value": 9})),
        op(json!({"op": "add", "path": "/a/b/4", "value": 9})),
        op(json!({"op": "add", "path": "/a/b/-5", "value": 9})),
        op(json!({"op": "add", "path": "/a/b/x", "value": 9})),
        op(json!({"op": "add", "path": "/z/y", "value": 9})),
        op(json!({"op": "add", "path": "/a/n/y", "value": 9})),
        op(json!({"op": "add", "path": "", "value": {}})),
        op(json!({"op": "add", "path": "/new"})),
        op(json!({"op": "add", "value": 1})),
        op(json!({"op": "remove", "path": "/c~1d"})),
        op(json!({"op": "remove", "path": "/e~0f"})),
        op(json!({"op": "remove", "path": "/a/b/-1"})),
        op(json!({"op": "remove", "path": "/a/b/3"})),
        op(json!({"op": "remove", "path": "/nope"})),
        op(json!({"op": "remove", "path": "/nope/x"})),
        op(json!({"op": "replace", "path": "/a/b/0", "value": "x"})),
        op(json!({"op": "replace", "path": "/missing", "value": "x"})),
        op(json!({"op": "replace", "path": "/a/b/7", "value": "x"})),
        op(json!({"op": "replace", "path": "", "value": {"all": "new"}})),
        op(json!({"op": "replace", "path": "", "value": "text"})),
        op(json!({"op": "move", "from": "/c~1d", "path": "/a/b/0"})),
        op(json!({"op": "move", "from": "/nope", "path": "/x"})),
        op(json!({"op": "move", "path": "/x"})),
        op(json!({"op": "copy", "from": "/a/b", "path": "/copy"})),
        op(json!({"op": "copy", "from": "/nope", "path": "/copy"})),
        op(json!({"op": "copy", "from": "/a/b/9", "path": "/copy"})),
        op(json!({"op": "test", "path": "/c~1d", "value": 1.0})),
        op(json!({"op": "test", "path": "/c~1d", "value": "1"})),
        op(json!({"op": "test", "path": "/a/b", "value": [1, 2.0, 3]})),
        op(json!({"op": "test", "path": "/a/n", "value": null})),
        op(json!({"op": "test", "path": "/missing", "value": null})),
        op(json!({"op": "test", "path": "/missing", "value": 1})),
        op(json!({"op": "test", "path": "/missing/x", "value": null})),
        op(json!({"op": "test", "path": "", "value": doc()})),
        op(json!({"op": "frob", "path": "/a"})),
        op(json!({"path": "/a"})),
        op(json!(null)),
        op(json!("add")),
        json(doc(), json!({"op": "add"})),
        json(doc(), json!("x")),
        json(doc(), json!(null)),
        json(doc(), json!([])),
        json(
            json!({}),
            json!([{"op": "add", "path": "/a", "value": {}}, {"op": "add", "path": "/a/b", "value": 1}, {"op": "remove", "path": "/a/b"}]),
        ),
        json(json!({}), Value::Array(vec![json!({"op": "test", "path": "/x", "value": null}); 10_001])),
        json(json!({}), Value::Array(vec![json!({"op": "test", "path": "/x", "value": null}); 10_000])),
    ];
    expect![[r#"
        {"a":{"b":[1,2,3],"n":null,"x":{"y":1}},"c/d":1,"e~f":2}
        {"a":{"b":[1,9,2,3],"n":null},"c/d":1,"e~f":2}
        {"a":{"b":[1,2,3,9],"n":null},"c/d":1,"e~f":2}
        {"a":{"b":[1,2,3,9],"n":null},"c/d":1,"e~f":2}
        {"a":{"b":[1,2,3,9],"n":null},"c/d":1,"e~f":2}
        422 "Invalid": the server rejected our request due to an error in our request
        422 "Invalid": the server rejected our request due to an error in our request
        422 "Invalid": the server rejected our request due to an error in our request
        422 "Invalid": the server rejected our request due to an error in our request
        422 "Invalid": the server rejected our request due to an error in our request
        422 "Invalid": the server rejected our request due to an error in our request
        {"a":{"b":[1,2,3],"n":null},"c/d":1,"e~f":2,"new":null}
        422 "Invalid": the server rejected our request due to an error in our request
        {"a":{"b":[1,2,3],"n":null},"e~f":2}
        {"a":{"b":[1,2,3],"n":null},"c/d":1}
        {"a":{"b":[1,2],"n":null},"c/d":1,"e~f":2}
        422 "Invalid": the server rejected our request due to an error in our request
        422 "Invalid": the server rejected our request due to an error in our request
        422 "Invalid": the server rejected our request due to an error in our request
        {"a":{"b":["x",2,3],"n":null},"c/d":1,"e~f":2}
        {"a":{"b":[1,2,3],"n":null},"c/d":1,"e~f":2,"missing":"x"}
        422 "Invalid": the server rejected our request due to an error in our request
        {"all":"new"}
        422 "Invalid": the server rejected our request due to an error in our request
        {"a":{"b":[1,1,2,3],"n":null},"e~f":2}
        422 "Invalid": the server rejected our request due to an error in our request
        422 "Invalid": the server rejected our request due to an error in our request
        {"a":{"b":[1,2,3],"n":null},"c/d":1,"copy":[1,2,3],"e~f":2}
        {"a":{"b":[1,2,3],"n":null},"c/d":1,"copy":null,"e~f":2}
        422 "Invalid": the server rejected our request due to an error in our request
        {"a":{"b":[1,2,3],"n":null},"c/d":1,"e~f":2}
        422 "Invalid": the server rejected our request due to an error in our request
        {"a":{"b":[1,2,3],"n":null},"c/d":1,"e~f":2}
        {"a":{"b":[1,2,3],"n":null},"c/d":1,"e~f":2}
        {"a":{"b":[1,2,3],"n":null},"c/d":1,"e~f":2}
        422 "Invalid": the server rejected our request due to an error in our request
        422 "Invalid": the server rejected our request due to an error in our request
        {"a":{"b":[1,2,3],"n":null},"c/d":1,"e~f":2}
        422 "Invalid": the server rejected our request due to an error in our request
        422 "Invalid": the server rejected our request due to an error in our request
        422 "Invalid": the server rejected our request due to an error in our request
        400 "BadRequest": json: cannot unmarshal string into Go value of type jsonpatch.Operation
        400 "BadRequest": json: cannot unmarshal object into Go value of type jsonpatch.Patch
        400 "BadRequest": json: cannot unmarshal string into Go value of type jsonpatch.Patch
        {"a":{"b":[1,2,3],"n":null},"c/d":1,"e~f":2}
        {"a":{"b":[1,2,3],"n":null},"c/d":1,"e~f":2}
        {"a":{}}
        413 "RequestEntityTooLarge": Request entity too large: The allowed maximum operations in a JSON patch is 10000, got 10001
        {}"#]].assert_eq(&got.join("\n"));
}

fn merged(mut target: Value, patch: Value) -> String {
    merge_patch(&mut target, &patch);
    target.to_string()
}

#[test]
fn applies_merge_patches() {
    // The table of RFC 7386, appendix A, where upstream agrees with it.
    let got = [
        merged(json!({"a": "b"}), json!({"a": "c"})),
        merged(json!({"a": "b"}), json!({"b": "c"})),
        merged(json!({"a": "b"}), json!({"a": null})),
        merged(json!({"a": "b", "b": "c"}), json!({"a": null})),
        merged(json!({"a": ["b"]}), json!({"a": "c"})),
        merged(json!({"a": "c"}), json!({"a": ["b"]})),
        merged(json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}})),
        merged(json!({"a": [{"b": "c"}]}), json!({"a": [1]})),
        merged(json!(["a", "b"]), json!(["c", "d"])),
        merged(json!({"a": "foo"}), json!("bar")),
        merged(json!({"e": null}), json!({"a": 1})),
        merged(json!([1, 2]), json!({"a": "b", "c": null})),
        merged(json!({}), json!({"a": {"bb": {"ccc": null}}})),
        // Nulls in what is added.
        merged(json!({"l": [1]}), json!({"l": [{"x": null, "y": 1}, null]})),
        merged(json!({"l": {}}), json!({"l": [{"x": null, "y": 1}]})),
    ];
    expect![[r#"
        {"a":"c"}
        {"a":"b","b":"c"}
        {}
        {"b":"c"}
        {"a":"c"}
        {"a":["b"]}
        {"a":{"b":"d"}}
        {"a":[1]}
        ["c","d"]
        "bar"
        {"a":1,"e":null}
        {"a":"b"}
        {"a":{"bb":{}}}
        {"l":[{"y":1},null]}
        {"l":[{"x":null,"y":1}]}"#]]
    .assert_eq(&got.join("\n"));
}

/// The type of upstream's own tests.
fn merge_item() -> SchemaRef {
    let scalars = |merge: bool| {
        let mut v = json!({"type": "array", "items": {"type": "string"}});
        if merge {
            v["x-kubernetes-patch-strategy"] = "merge".into();
        }
        v
    };
    let inner = json!({"type": "object", "properties": {"name": {"type": "string"}, "value": {"type": "string"},
        "other": {"type": "string"}, "mergingIntList": scalars(true), "nonMergingIntList": scalars(false),
        "simpleMap": {"type": "object", "additionalProperties": {"type": "string"}},
        "mergingList": {"type": "array", "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "name",
            "items": {"type": "object", "properties": {"name": {"type": "string"}, "value": {"type": "string"}}}}}});
    let list = |strategy: &str| {
        let mut v = json!({"type": "array", "items": inner});
        if !strategy.is_empty() {
            v["x-kubernetes-patch-strategy"] = strategy.into();
            v["x-kubernetes-patch-merge-key"] = "name".into();
        }
        v
    };
    schema(&json!({"type": "object", "properties": {
        "name": {"type": "string"}, "value": {"type": "string"},
        "mergingList": list("merge"), "nonMergingList": list(""),
        "keyless": {"type": "array", "x-kubernetes-patch-strategy": "merge", "items": inner},
        "mergingIntList": scalars(true), "nonMergingIntList": scalars(false),
        "listOfLists": {"type": "array", "x-kubernetes-patch-strategy": "merge", "items": {"type": "array", "items": {}}},
        "simpleMap": {"type": "object", "additionalProperties": {"type": "string"}},
        "item": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}},
        "retain": {"type": "object", "x-kubernetes-patch-strategy": "retainKeys",
            "properties": {"a": {"type": "string"}, "b": {"type": "string"}, "list": list("merge")}},
        "replaced": {"type": "object", "x-kubernetes-patch-strategy": "replace",
            "properties": {"a": {"type": "string"}, "b": {"type": "string"}}},
    }}))
}

fn smp(original: Value, patch: Value) -> String {
    show(strategic_merge(&merge_item(), &original, &patch))
}

fn all(cases: &[(Value, Value)], want: &Expect) {
    let got: Vec<String> = cases.iter().map(|(a, b)| smp(a.clone(), b.clone())).collect();
    want.assert_eq(&got.join("\n"));
}

#[test]
fn merges_maps_strategically() {
    all(
        &[
            (json!({"name": "1"}), json!({"value": "1"})),
            (json!({"name": "1", "value": "1"}), json!({"value": null})),
            (json!({"name": "1"}), json!({"value": null})),
            (json!({"item": {"a": "1"}}), json!({"item": {"b": "1", "a": null}})),
            (json!({"item": {"a": "1"}}), json!({"item": {"$patch": "replace", "b": "1"}})),
            (json!({"item": {"a": "1"}}), json!({"item": {"$patch": "delete"}})),
            (json!({"item": {"a": "1"}}), json!({"$patch": "replace", "name": "n"})),
            (json!({"item": {"a": "1"}}), json!({"$patch": "delete"})),
            (json!({"item": {"a": "1"}}), json!({"item": {"$patch": "frob", "b": "1"}})),
            (json!({"item": {"a": "1"}}), json!({"item": {"$patch": 5}})),
            (json!({"replaced": {"a": "1"}}), json!({"replaced": {"b": "1"}})),
            (json!({}), json!({"item": {"a": null, "b": "1"}, "simpleMap": {"$patch": "delete"}})),
            (json!({"item": {"a": "1"}}), json!({"item": "text"})),
            (json!({"simpleMap": {"a": "1"}}), json!({"simpleMap": {"b": "1"}})),
            (json!({"name": "1"}), json!({"unknown": {"x": 1}})),
            (json!({"unknown": {"y": 1}}), json!({"unknown": {"x": 1}})),
            (json!({"unknown": [1]}), json!({"unknown": [2]})),
            (json!({"simpleMap": {"a": {}}}), json!({"simpleMap": {"a": {"b": 1}}})),
            (json!({"name": "1"}), json!([1])),
            (json!({"item": {"a": "1"}}), json!({"ITEM": {"b": "1"}})),
        ],
        &expect![[r#"
        {"name":"1","value":"1"}
        {"name":"1"}
        {"name":"1"}
        {"item":{"b":"1"}}
        {"item":{"b":"1"}}
        {"item":{}}
        {"name":"n"}
        {}
        500 "": unknown patch type: frob in map: map[$patch:frob b:1]
        500 "": unknown patch type: %!s(int64=5) in map: map[$patch:5]
        {"replaced":{"b":"1"}}
        {"item":{"b":"1"}}
        {"item":"text"}
        {"simpleMap":{"a":"1","b":"1"}}
        {"name":"1","unknown":{"x":1}}
        500 "": unable to find api field in struct  for the json field "unknown"
        500 "": unable to find api field in struct  for the json field "unknown"
        500 "": merging an object in json but data type is not struct, instead is: map
        400 "BadRequest": invalid JSON document
        {"ITEM":{"b":"1"},"item":{"a":"1"}}"#]],
    );
}

#[test]
fn removes_keys_that_are_not_retained() {
    all(
        &[
            (json!({"retain": {"a": "1"}}), json!({"retain": {"$retainKeys": ["b"], "b": "1"}})),
            (json!({"retain": {"a": "1", "b": "1"}}), json!({"retain": {"$retainKeys": ["a"]}})),
            (json!({"retain": {"a": "1"}}), json!({"retain": {"$retainKeys": ["a"], "b": "1"}})),
            (json!({"retain": {"a": "1"}}), json!({"retain": {"$retainKeys": ["b"], "a": null, "b": "1"}})),
            (json!({"retain": {"a": "1"}}), json!({"retain": {"$retainKeys": "a"}})),
            (json!({"name": "1", "value": "1"}), json!({"$retainKeys": ["value"]})),
            (
                json!({"retain": {"a": "1", "list": [{"name": "1"}]}}),
                json!({"retain": {"$retainKeys": ["list"], "$setElementOrder/list": [{"name": "2"}, {"name": "1"}], "list": [{"name": "2"}]}}),
            ),
        ],
        &expect![[r#"
        {"retain":{"b":"1"}}
        {"retain":{"a":"1"}}
        400 "BadRequest": invalid patch format of retainKeys
        {"retain":{"b":"1"}}
        400 "BadRequest": invalid patch format of retainKeys
        {"value":"1"}
        {"retain":{"list":[{"name":"2"},{"name":"1"}]}}"#]],
    );
}

#[test]
fn merges_lists_by_key() {
    let two = || json!({"mergingList": [{"name": "1", "value": "a"}, {"name": "2", "value": "b"}]});
    all(
        &[
            (two(), json!({"mergingList": [{"name": "2", "value": "c"}, {"name": "3"}]})),
            (two(), json!({"mergingList": [{"name": "3"}, {"name": "1", "other": "x"}]})),
            (two(), json!({"mergingList": [{"name": "1", "$patch": "delete"}]})),
            (two(), json!({"mergingList": [{"name": "1", "$patch": "delete"}, {"name": "4"}]})),
            (two(), json!({"mergingList": [{"name": "9", "$patch": "delete"}]})),
            (two(), json!({"mergingList": [{"$patch": "replace"}, {"name": "9"}]})),
            (two(), json!({"mergingList": [{"$patch": "replace"}]})),
            (two(), json!({"mergingList": [{"$patch": "merge"}]})),
            (two(), json!({"mergingList": [{"$patch": "x", "name": "1"}]})),
            (two(), json!({"mergingList": [{"$patch": "delete"}]})),
            (two(), json!({"mergingList": [{"value": "1"}]})),
            (two(), json!({"mergingList": ["x"]})),
            (two(), json!({"mergingList": [{"name": "1", "value": null}]})),
            (two(), json!({"mergingList": null})),
            (two(), json!({"mergingList": []})),
            (json!({"mergingList": []}), json!({"mergingList": [{"name": "1", "value": null}]})),
            (
                json!({}),
                json!({"mergingList": [{"name": "1", "value": null}, {"name": "2", "$patch": "delete"}]}),
            ),
            (json!({"keyless": [{"name": "1"}]}), json!({"keyless": [{"name": "2"}]})),
            (json!({"nonMergingList": [{"name": "1"}]}), json!({"nonMergingList": [{"name": "2"}]})),
            (json!({"listOfLists": [[1]]}), json!({"listOfLists": [[2]]})),
            (
                json!({"mergingList": [{"name": "1", "mergingList": [{"name": "1"}, {"name": "2"}], "mergingIntList": ["a"]}]}),
                json!({"mergingList": [{"name": "1", "mergingList": [{"name": "2", "value": "x"}], "mergingIntList": ["b"], "nonMergingIntList": ["c"]}]}),
            ),
            (
                json!({"mergingList": [{"name": "1", "value": "1"}, {"name": "1", "value": "2"}, {"name": "2"}]}),
                json!({"mergingList": [{"name": "1", "$patch": "delete"}]}),
            ),
        ],
        &expect![[r#"
        {"mergingList":[{"name":"1","value":"a"},{"name":"2","value":"c"},{"name":"3"}]}
        {"mergingList":[{"name":"3"},{"name":"1","other":"x","value":"a"},{"name":"2","value":"b"}]}
        {"mergingList":[{"name":"2","value":"b"}]}
        {"mergingList":[{"name":"4"},{"name":"2","value":"b"}]}
        {"mergingList":[{"name":"1","value":"a"},{"name":"2","value":"b"}]}
        {"mergingList":[{"name":"9"}]}
        {"mergingList":[]}
        500 "": merging lists cannot yet be specified in the patch
        500 "": unknown patch type: x in map: map[$patch:x name:1]
        500 "": map: map[$patch:delete] does not contain declared merge key: name
        500 "": map: map[value:1] does not contain declared merge key: name
        500 "": list element types are not identical: [[map[name:1 value:a] map[name:2 value:b]] [x]]
        {"mergingList":[{"name":"1"},{"name":"2","value":"b"}]}
        {}
        {"mergingList":[{"name":"1","value":"a"},{"name":"2","value":"b"}]}
        {"mergingList":[{"name":"1","value":null}]}
        {"mergingList":[{"name":"1"}]}
        500 "": cannot merge lists without merge key for struct
        {"nonMergingList":[{"name":"2"}]}
        500 "": unexpected slice of slice
        {"mergingList":[{"mergingIntList":["b","a"],"mergingList":[{"name":"1"},{"name":"2","value":"x"}],"name":"1","nonMergingIntList":["c"]}]}
        {"mergingList":[{"name":"2"}]}"#]],
    );
}

#[test]
fn merges_lists_of_scalars() {
    all(
        &[
            (json!({"mergingIntList": ["1", "2"]}), json!({"mergingIntList": ["2", "3"]})),
            (
                json!({"mergingIntList": ["1", "2", "3"]}),
                json!({"$deleteFromPrimitiveList/mergingIntList": ["1", "3"]}),
            ),
            (
                json!({"nonMergingIntList": ["1", "2", "3"]}),
                json!({"$deleteFromPrimitiveList/nonMergingIntList": ["1"]}),
            ),
            (json!({"name": "1"}), json!({"$deleteFromPrimitiveList/mergingIntList": ["1"]})),
            (
                json!({"mergingIntList": ["1", "2", "3"]}),
                json!({"$deleteFromPrimitiveList/mergingIntList": ["1"], "mergingIntList": ["4"]}),
            ),
            (json!({"mergingIntList": ["1"]}), json!({"$deleteFromPrimitiveList": ["1"]})),
            (json!({"mergingIntList": ["1"]}), json!({"$deleteFromPrimitiveListX/mergingIntList": ["1"]})),
            (json!({"nonMergingIntList": ["1"]}), json!({"nonMergingIntList": ["2"]})),
            (json!({"mergingIntList": ["1"]}), json!({"mergingIntList": [{"a": 1}]})),
            (json!({"mergingIntList": [1]}), json!({"mergingIntList": [1.5]})),
        ],
        &expect![[r#"
        {"mergingIntList":["1","2","3"]}
        {"mergingIntList":["2"]}
        {"nonMergingIntList":["2","3"]}
        {"name":"1"}
        {"mergingIntList":["4","2","3"]}
        400 "BadRequest": invalid patch format of primitive list
        400 "BadRequest": invalid patch format of primitive list
        {"nonMergingIntList":["2"]}
        500 "": list element types are not identical: [[1] [map[a:1]]]
        500 "": list element types are not identical: [[1] [1.5]]"#]],
    );
}

#[test]
fn orders_elements_as_requested() {
    let live = || json!({"mergingList": [{"name": "1"}, {"name": "2"}, {"name": "3"}]});
    let order = |names: &[&str]| Value::Array(names.iter().map(|n| json!({"name": n})).collect());
    all(
        &[
            (live(), json!({"$setElementOrder/mergingList": order(&["3", "1"])})),
            (
                live(),
                json!({"$setElementOrder/mergingList": order(&["2", "4", "1"]), "mergingList": [{"name": "4"}]}),
            ),
            (
                live(),
                json!({"$setElementOrder/mergingList": order(&["3", "2"]), "mergingList": [{"name": "1", "$patch": "delete"}, {"name": "2", "value": "x"}]}),
            ),
            (
                live(),
                json!({"$setElementOrder/mergingList": order(&["1", "2"]), "mergingList": [{"name": "2"}, {"name": "1"}]}),
            ),
            (live(), json!({"$setElementOrder/mergingList": order(&["1"]), "mergingList": [{"name": "2"}]})),
            (json!({}), json!({"$setElementOrder/mergingList": order(&["1"])})),
            (
                json!({}),
                json!({"$setElementOrder/mergingList": order(&["2", "1"]), "mergingList": [{"name": "2"}, {"name": "1"}]}),
            ),
            (live(), json!({"$setElementOrder/mergingList": "x"})),
            (live(), json!({"$setElementOrder": []})),
            (live(), json!({"$setElementOrderX/mergingList": []})),
            (live(), json!({"$setElementOrder/nope": order(&["1"]), "nope": [{"name": "1"}]})),
            (live(), json!({"$setElementOrder/name": [], "name": []})),
            (
                live(),
                json!({"$setElementOrder/mergingList": [{"value": "1"}], "mergingList": [{"name": "1"}]}),
            ),
            (
                json!({"mergingIntList": ["1", "2", "3", "4"]}),
                json!({"$setElementOrder/mergingIntList": ["4", "5", "1"], "mergingIntList": ["5"], "$deleteFromPrimitiveList/mergingIntList": ["2"]}),
            ),
        ],
        &expect![[r#"
            {"mergingList":[{"name":"2"},{"name":"3"},{"name":"1"}]}
            {"mergingList":[{"name":"2"},{"name":"4"},{"name":"1"},{"name":"3"}]}
            {"mergingList":[{"name":"3"},{"name":"2","value":"x"}]}
            500 "": The order in patch list:
            [map[name:2] map[name:1]]
             doesn't match $setElementOrder list:
            [map[name:1] map[name:2]]

            500 "": The order in patch list:
            [map[name:2]]
             doesn't match $setElementOrder list:
            [map[name:1]]

            {}
            {"mergingList":[{"name":"2"},{"name":"1"}]}
            500 "": expected a []interface {}, but received a string
            400 "BadRequest": invalid patch format of setElementOrder list
            400 "BadRequest": invalid patch format of setElementOrder list
            500 "": unable to find api field in struct  for the json field "nope"
            500 "": expected slice or array type, but got: struct
            500 "": map: map[value:1] does not contain declared merge key: name
            {"mergingIntList":["3","4","5","1"]}"#]],
    );
}

#[test]
fn patches_built_in_types() {
    let apply = |kind: (&str, &str, &str), original: Value, patch: Value| {
        let schema = types::for_gvk(kind.0, kind.1, kind.2).unwrap();
        show(strategic_merge(&schema, &original, &patch))
    };
    let pod = |spec: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": "b"}, "finalizers": ["x"]}, "spec": spec});
    let got = [
        apply(
            ("", "v1", "Pod"),
            pod(
                json!({"containers": [{"name": "a", "image": "1", "args": ["x"], "ports": [{"containerPort": 80, "protocol": "TCP"}]}],
                "tolerations": [{"key": "k"}], "volumes": [{"name": "v", "emptyDir": {}}]}),
            ),
            json!({"metadata": {"labels": {"c": "d"}, "finalizers": ["y"]}, "spec": {
                "containers": [{"name": "a", "args": ["y"], "ports": [{"containerPort": 80, "name": "web"}]}, {"name": "b"}],
                "tolerations": [{"key": "l"}], "volumes": [{"name": "v", "$retainKeys": ["name", "configMap"], "configMap": {"name": "c"}}]}}),
        ),
        apply(
            ("apps", "v1", "Deployment"),
            json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}),
            json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}),
        ),
        apply(
            ("", "v1", "Service"),
            json!({"spec": {"ports": [{"port": 80, "targetPort": 1}, {"port": 81}]}}),
            json!({"spec": {"ports": [{"port": 80, "targetPort": 2}], "$setElementOrder/ports": [{"port": 81}, {"port": 80}]}}),
        ),
        apply(("", "v1", "Pod"), json!({"spec": {"nope": {}}}), json!({"spec": {"nope": {"a": 1}}})),
        apply(
            ("", "v1", "Node"),
            json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
            json!({"status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "Disk", "status": "True"}]}}),
        ),
    ];
    expect![[r#"
        {"apiVersion":"v1","kind":"Pod","metadata":{"finalizers":["y","x"],"labels":{"a":"b","c":"d"}},"spec":{"containers":[{"args":["y"],"image":"1","name":"a","ports":[{"containerPort":80,"name":"web","protocol":"TCP"}]},{"name":"b"}],"tolerations":[{"key":"l"}],"volumes":[{"configMap":{"name":"c"},"name":"v"}]}}
        {"spec":{"strategy":{"type":"Recreate"}}}
        {"spec":{"ports":[{"port":81},{"port":80,"targetPort":2}]}}
        500 "": unable to find api field in struct PodSpec for the json field "nope"
        {"status":{"conditions":[{"status":"False","type":"Ready"},{"status":"True","type":"Disk"}]}}"#]].assert_eq(&got.join("\n"));
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0..5i64).prop_map(Value::from),
        "[ab]".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            proptest::collection::btree_map("[abc]", inner, 0..3)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

/// RFC 7386's algorithm, plus upstream's dropping of nulls in whatever is not merged.
fn reference(target: &Value, patch: &Value) -> Value {
    match (target, patch) {
        (Value::Object(t), Value::Object(p)) => {
            let mut out = t.clone();
            for (k, v) in p {
                match (v, out.get(k)) {
                    (Value::Null, _) => drop(out.remove(k)),
                    (v, Some(old)) => {
                        let new = reference(old, v);
                        out.insert(k.clone(), new);
                    }
                    (v, None) => drop(out.insert(k.clone(), without_nulls(v))),
                }
            }
            Value::Object(out)
        }
        (Value::Object(_), other) => other.clone(),
        (_, other) => without_nulls(other),
    }
}

proptest! {
    #[test]
    fn merge_patches_obey_their_law(target in any_json(), patch in any_json()) {
        prop_assume!(patch.is_object());
        let mut got = target.clone();
        merge_patch(&mut got, &patch);
        prop_assert_eq!(&got, &reference(&target, &patch));
        // Applying it again changes nothing, once nulls are gone that replaced an object literally.
        merge_patch(&mut got, &patch);
        let twice = got.clone();
        merge_patch(&mut got, &patch);
        prop_assert_eq!(got, twice);
    }

    #[test]
    fn json_patch_never_panics(target in any_json(), path in "(/([abc01-]|~0|~1|-1){0,2}){0,3}", from in "(/[abc01]){0,2}",
        op in proptest::sample::select(&["add", "remove", "replace", "move", "copy", "test"][..]), value in any_json()) {
        let mut got = target.clone();
        let patch = json!([{"op": op, "path": path, "from": from, "value": value}]);
        if json_patch(&mut got, &patch, &Work::unbounded()).is_ok() && op == "test" {
            prop_assert_eq!(got, target);
        }
    }

    #[test]
    fn what_was_added_tests_equal_and_can_be_removed(target in any_json(), key in "[xyz]", value in any_json()) {
        prop_assume!(target.is_object());
        let mut got = target.clone();
        let path = format!("/{key}");
        let patch = json!([{"op": "add", "path": path, "value": value}, {"op": "test", "path": path, "value": value},
            {"op": "remove", "path": path}]);
        prop_assert!(json_patch(&mut got, &patch, &Work::unbounded()).is_ok());
        prop_assert_eq!(got, target);
    }

    #[test]
    fn strategic_merge_never_panics(original in any_json(), patch in any_json()) {
        let schema = merge_item();
        let rename = |v: &Value| {
            let text = v.to_string().replace("\"a\":", "\"mergingList\":").replace("\"b\":", "\"name\":")
                .replace("\"c\":", "\"item\":");
            serde_json::from_str::<Value>(&text).unwrap()
        };
        let _ = strategic_merge(&schema, &rename(&original), &rename(&patch));
    }
}
