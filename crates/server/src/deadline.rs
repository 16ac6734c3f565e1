//! The deadline of a request: `--request-timeout`, or less if its client requests that with `?timeout=`.

use crate::route::RequestInfo;
use kaji_meta::Status;
use std::time::Duration;

/// The time of a request; `None` for those that stay open by design.
///
/// # Errors
/// 400 if the client's value is no duration.
pub fn of(info: &RequestInfo, most: Duration) -> Result<Option<Duration>, Status> {
    if info.long_running() {
        return Ok(None);
    }
    match info.query.text("timeout") {
        "" => Ok(Some(most)),
        text => {
            let asked = parse(text).map_err(|error| {
                Status::bad_request(format!("invalid timeout specified in the request URL - {error}"))
            })?;
            // Zero, or a negative time, means no timeout of the request.
            Ok(Some(asked.filter(|a| !a.is_zero()).map_or(most, |a| a.min(most))))
        }
    }
}

/// The value of `--request-timeout`.
///
/// # Errors
/// When it is no duration, or none that a request could keep.
pub fn flag(text: &str) -> Result<Duration, String> {
    parse(text)?.filter(|t| !t.is_zero()).ok_or_else(|| format!("{text:?} is not positive"))
}

/// A duration; `None` for a negative one.
fn parse(text: &str) -> Result<Option<Duration>, String> {
    let nanoseconds = kaji_meta::duration::parse(text)?;
    Ok(u64::try_from(nanoseconds).ok().map(Duration::from_nanos))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;

    #[test]
    fn clients_may_ask_for_less() {
        let ask = |text: &str| {
            let get = RequestInfo::parse(&Method::GET, "/api/v1/pods", [("timeout", text)].into()).unwrap();
            match of(&get, Duration::from_secs(60)) {
                Ok(time) => format!("{:?}", time.unwrap()),
                Err(status) => status.message,
            }
        };
        let got: Vec<String> =
            ["", "5s", "1m30s", "1.5s", "0", "0s", "-3s", "10", "1x", "s", "-"].map(ask).to_vec();
        expect_test::expect![[r#"
            60s
            5s
            60s
            1.5s
            60s
            60s
            60s
            invalid timeout specified in the request URL - time: missing unit in duration "10"
            invalid timeout specified in the request URL - time: unknown unit "x" in duration "1x"
            invalid timeout specified in the request URL - time: invalid duration "s"
            invalid timeout specified in the request URL - time: invalid duration "-""#]]
        .assert_eq(&got.join("\n"));
        let watch = RequestInfo::parse(&Method::GET, "/api/v1/watch/pods", Default::default()).unwrap();
        assert_eq!(of(&watch, Duration::from_secs(60)), Ok(None));
    }
}
