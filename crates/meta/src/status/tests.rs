//! The texts, codes and details of every constructor, and the JSON round trip.

use super::*;
use crate::field::{Error, Path};
use expect_test::expect;

fn all() -> Vec<Status> {
    let gr = GroupResource::new("apps", "deployments");
    let gk = GroupKind::new("apps", "Deployment");
    let path = Path::new("spec").child("replicas");
    let errors = [Error::invalid(&path, -1, "must be >= 0"), Error::required(&Path::new("spec"), "")];
    let cause = Cause { reason: "FieldManagerConflict".into(), message: "m".into(), field: ".spec".into() };
    vec![
        Status::not_found(&gr, "web"),
        Status::generic_not_found(),
        Status::already_exists(&gr, "web"),
        Status::generate_name_conflict(&gr, "web-x", 1),
        Status::conflict(&gr, "web", "the object has been modified"),
        Status::apply_conflict(vec![cause], "Apply failed with 1 conflict"),
        Status::gone("gone"),
        Status::resource_expired("too old resource version: 1 (2)"),
        Status::invalid(&gk, "web", &errors),
        Status::invalid(&gk, "web", &[]),
        Status::bad_request("bad"),
        Status::unauthorized(""),
        Status::unauthorized("Unauthorized"),
        Status::forbidden(&gr, "web", "no"),
        Status::forbidden(&gr, "", "no"),
        Status::forbidden(&GroupResource::default(), "", "no"),
        Status::method_not_supported(&gr, "patch"),
        Status::not_acceptable_types(&["application/json", "application/yaml"]),
        Status::unsupported_media_types(&["application/json"]),
        Status::too_many_requests("slow down", 2),
        Status::request_entity_too_large("limit is 3145728"),
        Status::server_timeout(&gr, "list", 3),
        Status::timeout("request did not complete within 60s", 0),
        Status::resource_version_too_large(9, 4, 1),
        Status::internal("boom"),
        Status::service_unavailable("starting"),
        Status::generic(409, "POST", &gr, "web", ""),
        Status::generic(422, "", &GroupResource::default(), "", "bad patch"),
        Status::generic(500, "GET", &gr, "", "boom"),
        Status::generic(418, "GET", &gr, "", ""),
    ]
}

#[test]
fn encodes_statuses_as_upstream() {
    let text: Vec<String> = all()
        .iter()
        .map(|s| {
            let mut v = s.to_value();
            for key in ["kind", "apiVersion", "metadata", "status"] {
                assert!(v.as_object_mut().unwrap().remove(key).is_some());
            }
            v.to_string()
        })
        .collect();
    expect![[r#"
        {"code":404,"details":{"group":"apps","kind":"deployments","name":"web"},"message":"deployments.apps \"web\" not found","reason":"NotFound"}
        {"code":404,"details":{},"message":"the server could not find the requested resource","reason":"NotFound"}
        {"code":409,"details":{"group":"apps","kind":"deployments","name":"web"},"message":"deployments.apps \"web\" already exists","reason":"AlreadyExists"}
        {"code":409,"details":{"group":"apps","kind":"deployments","name":"web-x","retryAfterSeconds":1},"message":"deployments.apps \"web-x\" already exists, the server was not able to generate a unique name for the object","reason":"AlreadyExists"}
        {"code":409,"details":{"group":"apps","kind":"deployments","name":"web"},"message":"Operation cannot be fulfilled on deployments.apps \"web\": the object has been modified","reason":"Conflict"}
        {"code":409,"details":{"causes":[{"field":".spec","message":"m","reason":"FieldManagerConflict"}]},"message":"Apply failed with 1 conflict","reason":"Conflict"}
        {"code":410,"message":"gone","reason":"Gone"}
        {"code":410,"message":"too old resource version: 1 (2)","reason":"Expired"}
        {"code":422,"details":{"causes":[{"field":"spec.replicas","message":"Invalid value: -1: must be >= 0","reason":"FieldValueInvalid"},{"field":"spec","message":"Required value","reason":"FieldValueRequired"}],"group":"apps","kind":"Deployment","name":"web"},"message":"Deployment.apps \"web\" is invalid: [spec.replicas: Invalid value: -1: must be >= 0, spec: Required value]","reason":"Invalid"}
        {"code":422,"details":{"group":"apps","kind":"Deployment","name":"web"},"message":"Deployment.apps \"web\" is invalid","reason":"Invalid"}
        {"code":400,"message":"bad","reason":"BadRequest"}
        {"code":401,"message":"not authorized","reason":"Unauthorized"}
        {"code":401,"message":"Unauthorized","reason":"Unauthorized"}
        {"code":403,"details":{"group":"apps","kind":"deployments","name":"web"},"message":"deployments.apps \"web\" is forbidden: no","reason":"Forbidden"}
        {"code":403,"details":{"group":"apps","kind":"deployments"},"message":"deployments.apps is forbidden: no","reason":"Forbidden"}
        {"code":403,"details":{},"message":"forbidden: no","reason":"Forbidden"}
        {"code":405,"details":{"group":"apps","kind":"deployments"},"message":"patch is not supported on resources of kind \"deployments.apps\"","reason":"MethodNotAllowed"}
        {"code":406,"message":"only the following media types are accepted: application/json, application/yaml","reason":"NotAcceptable"}
        {"code":415,"message":"the body of the request was in an unknown format - accepted media types include: application/json","reason":"UnsupportedMediaType"}
        {"code":429,"details":{"retryAfterSeconds":2},"message":"slow down","reason":"TooManyRequests"}
        {"code":413,"message":"Request entity too large: limit is 3145728","reason":"RequestEntityTooLarge"}
        {"code":500,"details":{"group":"apps","kind":"deployments","name":"list","retryAfterSeconds":3},"message":"The list operation against deployments.apps could not be completed at this time, please try again.","reason":"ServerTimeout"}
        {"code":504,"details":{},"message":"Timeout: request did not complete within 60s","reason":"Timeout"}
        {"code":504,"details":{"causes":[{"message":"Too large resource version","reason":"ResourceVersionTooLarge"}],"retryAfterSeconds":1},"message":"Timeout: Too large resource version: 9, current: 4","reason":"Timeout"}
        {"code":500,"details":{"causes":[{"message":"boom"}]},"message":"Internal error occurred: boom","reason":"InternalError"}
        {"code":503,"message":"starting","reason":"ServiceUnavailable"}
        {"code":409,"details":{"group":"apps","kind":"deployments","name":"web"},"message":"the server reported a conflict (post deployments.apps web)","reason":"AlreadyExists"}
        {"code":422,"details":{},"message":"the server rejected our request due to an error in our request","reason":"Invalid"}
        {"code":500,"details":{"group":"apps","kind":"deployments"},"message":"an error on the server (\"boom\") has prevented the request from succeeding (get deployments.apps)","reason":"InternalError"}
        {"code":418,"details":{"group":"apps","kind":"deployments"},"message":"the server responded with the status code 418 but did not return more information (get deployments.apps)"}"#]].assert_eq(&text.join("\n"));
}

#[test]
fn json_round_trip() {
    for status in all() {
        assert_eq!(Status::from_value(&status.to_value()).as_ref(), Some(&status));
        assert_eq!(status.to_string(), status.message);
    }
    assert_eq!(Status::from_value(&Status::success(201)), None);
    assert_eq!(Status::from_value(&json!({"kind": "Pod", "apiVersion": "v1"})), None);
}

#[test]
fn encodes_success_bodies() {
    let details = Details { uid: "u".into(), ..Details::of(&GroupResource::new("", "pods"), "p") };
    assert_eq!(
        Status::success_deleted(&details),
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
               "details": {"name": "p", "kind": "pods", "uid": "u"}})
    );
}

#[test]
fn predicates_fall_back_to_the_code() {
    assert!(Status::new(404, Reason::Unknown, "").is_not_found());
    assert!(Status::new(404, Reason::Other("x".into()), "").is_not_found());
    assert!(!Status::new(404, Reason::BadRequest, "").is_not_found());
    assert!(!Status::new(409, Reason::Unknown, "").is_already_exists());
    assert_eq!(Status::server_timeout(&GroupResource::default(), "x", 0).suggests_retry(), Some(0));
    assert_eq!(Status::timeout("x", 0).suggests_retry(), None);
    assert!(Status::resource_version_too_large(2, 1, 1).cause(CAUSE_RESOURCE_VERSION_TOO_LARGE).is_some());
}

#[test]
fn reasons_round_trip() {
    for r in ["", "NotFound", "StorageReadError", "Custom"] {
        assert_eq!(Reason::parse(r).as_str(), r);
    }
}
