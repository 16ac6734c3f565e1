//! Subresources that reach into a running pod: `log`, `exec`, `attach`, `portforward`, `proxy`.
//!
//! Here is only what can be said without the node: whether the request makes sense for the pod. What follows is a stream
//! between the client and a kubelet, which hooks (answers that are JSON) cannot carry.

use super::each_container;
use crate::shared::Fields;
use kaji_meta::{Path, Query, Reason, Status, object};
use serde_json::Value;

/// The container that a request means, by upstream's rules.
pub fn container<'a>(pod: &'a Value, requested: &'a str) -> Result<&'a str, Status> {
    let name = object::name(pod);
    let mut all = vec![];
    each_container(pod.at("spec"), &Path::root(), |c, _| all.push(c.text("name")));
    if !requested.is_empty() {
        return if all.contains(&requested) {
            Ok(requested)
        } else {
            Err(Status::bad_request(format!("container {requested} is not valid for pod {name}")))
        };
    }
    match pod.at("spec").list("containers") {
        [only] => Ok(only.text("name")),
        [] => Err(Status::bad_request(format!("a container name must be specified for pod {name}"))),
        _ => Err(Status::bad_request(format!(
            "a container name must be specified for pod {name}, choose one of: [{}]",
            all.join(" ")
        ))),
    }
}

/// Checks a request, then refuses it: there is no kubelet to stream from.
pub fn answer(subresource: &str, pod: &Value, query: &Query) -> Status {
    let requested = query.text("container");
    if matches!(subresource, "log" | "exec" | "attach")
        && let Err(status) = container(pod, requested)
    {
        return status;
    }
    if subresource != "proxy" && subresource != "log" && pod.at("spec").text("nodeName").is_empty() {
        return Status::bad_request(format!("pod {} does not have a host assigned", object::name(pod)));
    }
    let text =
        format!("the server cannot stream {subresource} of pod {}: no kubelet serves it", object::name(pod));
    Status::new(501, Reason::Unknown, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_the_container() {
        let one = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}]}});
        assert_eq!(container(&one, "").unwrap(), "a");
        let two = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}, {"name": "b"}],
            "initContainers": [{"name": "i"}]}});
        assert_eq!(
            container(&two, "").unwrap_err().message,
            "a container name must be specified for pod p, choose one of: [i a b]"
        );
        assert_eq!(container(&two, "x").unwrap_err().message, "container x is not valid for pod p");
        assert_eq!(container(&two, "i").unwrap(), "i");
    }
}
