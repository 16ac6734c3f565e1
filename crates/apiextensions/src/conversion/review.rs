//! `ConversionReview`: the request to a conversion webhook, and the validation of its answer.
//!
//! Source: apiextensions.k8s.io/v1 and v1beta1; apiextensions-apiserver, `apiserver/conversion`. Texts are upstream's.
//!
//! Invariant: an answer is taken whole or not at all; an object in it differs from the one that was sent in its
//! apiVersion, its labels, its annotations and what is outside of metadata, and in nothing else.

use super::metadata;
use kaji_meta::{gvk::split_api_version, object, text::quote};
use serde_json::{Value, json};

/// The versions of ConversionReview that are spoken here.
const SPOKEN: [&str; 2] = ["v1", "v1beta1"];

/// What is wrong with an answer: a text, and upstream's name of the failure for metrics.
#[derive(Debug, PartialEq)]
pub struct Failure {
    pub text: String,
    pub kind: &'static str,
}

/// There was no answer.
pub const CALL: &str = "conversion_webhook_call_failure";
const MALFORMED: &str = "conversion_webhook_malformed_response_failure";
const PARTIAL: &str = "conversion_webhook_partial_response_failure";
const INVALID: &str = "conversion_webhook_invalid_converted_object_failure";

/// One question.
pub struct Review<'a> {
    /// Of ConversionReview: `v1`, `v1beta1`.
    pub version: &'static str,
    pub uid: &'a str,
    /// What is wanted: `example.com/v2`.
    pub api_version: &'a str,
    /// The kind of lists, for messages about several objects.
    pub list_kind: &'a str,
}

/// The first version among those that a webhook speaks that is also spoken here.
pub fn version(accepted: &[String]) -> Option<&'static str> {
    accepted.iter().find_map(|a| SPOKEN.into_iter().find(|s| s == a))
}

/// A group, version and kind as Go prints them.
fn gvk(api_version: &str, kind: &str) -> String {
    let slash = if api_version.contains('/') { "" } else { "/" };
    format!("{slash}{api_version}, Kind={kind}")
}

impl Review<'_> {
    /// The question about these objects.
    pub fn request(&self, objects: &[Value]) -> Vec<u8> {
        let review = json!({
            "kind": "ConversionReview",
            "apiVersion": format!("apiextensions.k8s.io/{}", self.version),
            "request": {"uid": self.uid, "desiredAPIVersion": self.api_version, "objects": objects},
            "response": {"uid": "", "convertedObjects": null, "result": {"metadata": {}}},
        });
        review.to_string().into_bytes()
    }

    /// What messages are about: the object, or the list of them.
    fn about(&self, objects: &[Value]) -> String {
        match objects {
            [one] => gvk(object::api_version(one), object::kind(one)),
            _ => gvk(self.api_version, self.list_kind),
        }
    }

    /// A failure to get an answer.
    pub fn unanswered(&self, objects: &[Value], why: &dyn std::fmt::Display) -> Failure {
        Failure { text: format!("conversion webhook for {} failed: {why}", self.about(objects)), kind: CALL }
    }

    /// The converted objects in an answer.
    ///
    /// # Errors
    /// With upstream's text about the first thing that is wrong.
    pub fn answer(&self, objects: &[Value], answer: &[u8]) -> Result<Vec<Value>, Failure> {
        let review = parsed(answer).map_err(|e| self.unanswered(objects, &e))?;
        let converted = self.converted(review).map_err(|why| Failure {
            text: format!("conversion webhook for {} failed: {why}", self.about(objects)),
            kind: MALFORMED,
        })?;
        if converted.len() != objects.len() {
            let (got, expected, about) = (converted.len(), objects.len(), self.about(objects));
            let text = format!("conversion webhook for {about} returned {got} objects, expected {expected}");
            return Err(Failure { text, kind: PARTIAL });
        }
        let checked = objects.iter().zip(converted).enumerate();
        checked.map(|(i, (original, converted))| self.checked(objects, i, original, converted)).collect()
    }

    /// The objects of a review that says it went well.
    fn converted(&self, mut review: Value) -> Result<Vec<Value>, String> {
        if self.version == "v1" {
            let expected = gvk("apiextensions.k8s.io/v1", "ConversionReview");
            let got = gvk(object::api_version(&review), object::kind(&review));
            if got != expected {
                return Err(format!("expected webhook response of {expected}, got {got}"));
            }
        }
        let response = review.get_mut("response").filter(|r| r.is_object());
        let response = response.ok_or_else(|| "no response provided".to_owned())?;
        let uid = object::str_at(response, &["uid"]);
        // The older version never asked for it.
        if self.version == "v1" && uid != self.uid {
            return Err(format!("expected response.uid={}, got {}", quote(self.uid), quote(uid)));
        }
        match (
            object::str_at(response, &["result", "status"]),
            object::str_at(response, &["result", "message"]),
        ) {
            ("Success", _) => {}
            (status, "") => return Err(format!("response.result.status was '{status}', not 'Success'")),
            (_, message) => return Err(message.to_owned()),
        }
        match response.get_mut("convertedObjects").map(Value::take) {
            Some(Value::Array(objects)) => Ok(objects),
            None | Some(Value::Null) => Ok(vec![]),
            Some(_) => Err("response.convertedObjects is no list".into()),
        }
    }

    fn checked(
        &self,
        objects: &[Value],
        i: usize,
        original: &Value,
        mut converted: Value,
    ) -> Result<Value, Failure> {
        // Upstream words it differently for one object and for many.
        let (one, about) = (objects.len() == 1, self.about(objects));
        let failure = |text: String| Failure { text, kind: INVALID };
        let invalid = |why: &str| {
            let what = if one { "invalid object" } else { "invalid converted object" };
            failure(format!("conversion webhook for {about} returned {what} at index {i}: {why}"))
        };
        if !converted.is_object() || object::kind(&converted).is_empty() {
            return Err(invalid(&format!(
                "Object 'Kind' is missing in '{}'",
                shortened(&converted.to_string())
            )));
        }
        let got = object::api_version(&converted);
        if split_api_version(got) != split_api_version(self.api_version) {
            let expected = self.api_version;
            return Err(invalid(&format!("invalid groupVersion (expected {expected}, received {got})")));
        }
        let (expected, got) = (object::kind(original), object::kind(&converted));
        if expected != got {
            return Err(invalid(&format!("invalid kind (expected {expected}, received {got})")));
        }
        metadata::same(original, &converted).map_err(|why| match one {
            true => failure(format!("conversion webhook for {about} returned invalid object: {why}")),
            false => invalid(&why),
        })?;
        metadata::restore(original, &mut converted).map_err(|why| {
            failure(match one {
                true => format!("conversion webhook for {about} returned invalid metadata: {why}"),
                false => {
                    format!("conversion webhook for {about} returned invalid metadata in object at index {i}: {why}")
                }
            })
        })?;
        Ok(converted)
    }
}

fn parsed(answer: &[u8]) -> Result<Value, String> {
    if answer.is_empty() {
        return Err("0-length response with status code: 200 and content type: ".into());
    }
    let review: Value = serde_json::from_slice(answer)
        .map_err(|e| format!("couldn't get version/kind; json parse error: {e}"))?;
    if !review.is_object() {
        return Err("couldn't get version/kind; json parse error: the answer is no object".into());
    }
    if object::kind(&review).is_empty() {
        return Err(format!("Object 'Kind' is missing in '{}'", shortened(&review.to_string())));
    }
    Ok(review)
}

/// At most 4096 characters of a text that a webhook sent.
pub fn shortened(text: &str) -> String {
    const MOST: usize = 4096;
    match text.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use std::fmt::Write;

    fn object(name: &str) -> Value {
        json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": name, "uid": "u", "generation": 1,
            "labels": {"a": "b"}}, "one": 1})
    }

    fn review(version: &'static str) -> Review<'static> {
        Review { version, uid: "7", api_version: "example.com/v2", list_kind: "FooList" }
    }

    fn converted(name: &str) -> Value {
        let mut object = object(name);
        object["apiVersion"] = "example.com/v2".into();
        object
    }

    fn answer(objects: &[Value]) -> Value {
        json!({"kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1",
            "response": {"uid": "7", "result": {"status": "Success"}, "convertedObjects": objects}})
    }

    #[test]
    fn writes_the_review() {
        expect![[r#"{"apiVersion":"apiextensions.k8s.io/v1beta1","kind":"ConversionReview","request":{"desiredAPIVersion":"example.com/v2","objects":[{"apiVersion":"example.com/v1","kind":"Foo","metadata":{"generation":1,"labels":{"a":"b"},"name":"a","uid":"u"},"one":1}],"uid":"7"},"response":{"convertedObjects":null,"result":{"metadata":{}},"uid":""}}"#]]
            .assert_eq(std::str::from_utf8(&review("v1beta1").request(&[object("a")])).unwrap());
        let all = |v: &[&str]| v.iter().map(|v| (*v).to_owned()).collect::<Vec<_>>();
        assert_eq!(version(&all(&["v9", "v1beta1", "v1"])), Some("v1beta1"));
        assert_eq!(version(&all(&["v2"])), None);
    }

    #[test]
    fn keeps_what_a_conversion_may_not_change() {
        let (sent, mut changed) = ([object("a")], converted("a"));
        changed["metadata"] = json!({"name": "a", "uid": "u", "generation": 9, "ownerReferences": [{"name": "x"}],
            "annotations": {"x": "y"}});
        changed["two"] = 2.into();
        let got = review("v1").answer(&sent, answer(&[changed]).to_string().as_bytes()).unwrap();
        assert_eq!(
            got,
            [json!({"apiVersion": "example.com/v2", "kind": "Foo", "one": 1, "two": 2,
                "metadata": {"name": "a", "uid": "u", "generation": 1, "annotations": {"x": "y"}}})]
        );
        // v1beta1 needs neither names nor uid.
        let mut old = answer(&[converted("a")]);
        old["response"]["uid"] = "".into();
        old["apiVersion"] = "other/v1".into();
        assert!(review("v1beta1").answer(&sent, old.to_string().as_bytes()).is_ok());
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn rejects_invalid_conversion_responses() {
        let with = |pointer: &str, value: Value| {
            let mut answer = answer(&[converted("a")]);
            *answer.pointer_mut(pointer).unwrap() = value;
            answer.to_string()
        };
        let one = "/response/convertedObjects/0";
        let object = |pointer: &str, value: Value| with(&format!("{one}{pointer}"), value);
        let cases = [
            String::new(),
            "<html>".into(),
            "{}".into(),
            "[]".into(),
            with("/kind", "Other".into()),
            with("/apiVersion", "apiextensions.k8s.io/v1beta1".into()),
            with("/response", Value::Null),
            with("/response/uid", "8".into()),
            with("/response/result", json!({"status": "Failure"})),
            with("/response/result", json!({"message": "no", "status": "Failure"})),
            with("/response/result", Value::Null),
            with("/response/convertedObjects", json!([])),
            with("/response/convertedObjects", Value::Null),
            with("/response/convertedObjects", json!([converted("a"), converted("a")])),
            with(one, Value::Null),
            object("/kind", "Bar".into()),
            object("/apiVersion", "example.com/v1".into()),
            object("/metadata/name", "b".into()),
            object("/metadata/uid", "v".into()),
            object("/metadata", Value::Null),
            object("/metadata", json!({"name": "a", "uid": "u", "namespace": "n"})),
            object("/metadata/labels", json!(["a"])),
            object("/metadata/labels", json!({"a": 1})),
            object("/metadata/labels", json!({"a b": "c"})),
            object("/metadata/labels", json!({"a": "c d"})),
        ];
        let mut seen = String::new();
        for case in &cases {
            let failure = review("v1").answer(&[self::object("a")], case.as_bytes()).unwrap_err();
            writeln!(seen, "{}: {}", failure.kind, failure.text).unwrap();
        }
        let two = [self::object("a"), self::object("b")];
        for objects in [[converted("b"), converted("a")], [converted("a"), self::object("b")]] {
            let failure = review("v1").answer(&two, answer(&objects).to_string().as_bytes()).unwrap_err();
            writeln!(seen, "{}", failure.text).unwrap();
        }
        expect![[r#"
            conversion_webhook_call_failure: conversion webhook for example.com/v1, Kind=Foo failed: 0-length response with status code: 200 and content type: 
            conversion_webhook_call_failure: conversion webhook for example.com/v1, Kind=Foo failed: couldn't get version/kind; json parse error: expected value at line 1 column 1
            conversion_webhook_call_failure: conversion webhook for example.com/v1, Kind=Foo failed: Object 'Kind' is missing in '{}'
            conversion_webhook_call_failure: conversion webhook for example.com/v1, Kind=Foo failed: couldn't get version/kind; json parse error: the answer is no object
            conversion_webhook_malformed_response_failure: conversion webhook for example.com/v1, Kind=Foo failed: expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got apiextensions.k8s.io/v1, Kind=Other
            conversion_webhook_malformed_response_failure: conversion webhook for example.com/v1, Kind=Foo failed: expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got apiextensions.k8s.io/v1beta1, Kind=ConversionReview
            conversion_webhook_malformed_response_failure: conversion webhook for example.com/v1, Kind=Foo failed: no response provided
            conversion_webhook_malformed_response_failure: conversion webhook for example.com/v1, Kind=Foo failed: expected response.uid="7", got "8"
            conversion_webhook_malformed_response_failure: conversion webhook for example.com/v1, Kind=Foo failed: response.result.status was 'Failure', not 'Success'
            conversion_webhook_malformed_response_failure: conversion webhook for example.com/v1, Kind=Foo failed: no
            conversion_webhook_malformed_response_failure: conversion webhook for example.com/v1, Kind=Foo failed: response.result.status was '', not 'Success'
            conversion_webhook_partial_response_failure: conversion webhook for example.com/v1, Kind=Foo returned 0 objects, expected 1
            conversion_webhook_partial_response_failure: conversion webhook for example.com/v1, Kind=Foo returned 0 objects, expected 1
            conversion_webhook_partial_response_failure: conversion webhook for example.com/v1, Kind=Foo returned 2 objects, expected 1
            conversion_webhook_invalid_converted_object_failure: conversion webhook for example.com/v1, Kind=Foo returned invalid object at index 0: Object 'Kind' is missing in 'null'
            conversion_webhook_invalid_converted_object_failure: conversion webhook for example.com/v1, Kind=Foo returned invalid object at index 0: invalid kind (expected Foo, received Bar)
            conversion_webhook_invalid_converted_object_failure: conversion webhook for example.com/v1, Kind=Foo returned invalid object at index 0: invalid groupVersion (expected example.com/v2, received example.com/v1)
            conversion_webhook_invalid_converted_object_failure: conversion webhook for example.com/v1, Kind=Foo returned invalid object: must have the same name: a != b
            conversion_webhook_invalid_converted_object_failure: conversion webhook for example.com/v1, Kind=Foo returned invalid object: must have the same UID: u != v
            conversion_webhook_invalid_converted_object_failure: conversion webhook for example.com/v1, Kind=Foo returned invalid object: must have the same name: a != 
            conversion_webhook_invalid_converted_object_failure: conversion webhook for example.com/v1, Kind=Foo returned invalid object: must have the same namespace:  != n
            conversion_webhook_invalid_converted_object_failure: conversion webhook for example.com/v1, Kind=Foo returned invalid metadata: invalid metadata.labels of type []interface {} in converted object
            conversion_webhook_invalid_converted_object_failure: conversion webhook for example.com/v1, Kind=Foo returned invalid metadata: metadata.labels[a] must be a string, but is int64 in converted object
            conversion_webhook_invalid_converted_object_failure: conversion webhook for example.com/v1, Kind=Foo returned invalid metadata: metadata.labels: Invalid value: "a b": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')
            conversion_webhook_invalid_converted_object_failure: conversion webhook for example.com/v1, Kind=Foo returned invalid metadata: metadata.labels: Invalid value: "c d": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')
            conversion webhook for example.com/v2, Kind=FooList returned invalid converted object at index 0: must have the same name: a != b
            conversion webhook for example.com/v2, Kind=FooList returned invalid converted object at index 1: invalid groupVersion (expected example.com/v2, received example.com/v1)
        "#]].assert_eq(&seen);
    }
}
