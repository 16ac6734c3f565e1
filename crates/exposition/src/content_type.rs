//! The `Content-Type` of a page, by what the client takes.
//!
//! Source: common's `expfmt.Negotiate`, without the protobuf format: a client that asks for it takes text as well.

/// How a client may ask for names with other characters to be escaped. No name here has one.
const ESCAPINGS: [(&str, &str); 4] = [
    ("underscores", CONTENT_TYPE),
    ("allow-utf-8", "text/plain; version=0.0.4; charset=utf-8; escaping=allow-utf-8"),
    ("dots", "text/plain; version=0.0.4; charset=utf-8; escaping=dots"),
    ("values", "text/plain; version=0.0.4; charset=utf-8; escaping=values"),
];

/// The content type where nothing is negotiated.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// The content type for a request with this `Accept` header.
#[must_use]
pub fn content_type(accept: Option<&str>) -> &'static str {
    let mut ranges: Vec<(f64, &str)> =
        accept.unwrap_or_default().split(',').map(|r| (quality(r), r)).collect();
    // Stable: of equal ones the first.
    ranges.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut chosen = CONTENT_TYPE;
    for (_, range) in ranges {
        let asked = parameter(range, "escaping");
        if let Some((_, known)) = ESCAPINGS.into_iter().find(|(name, _)| asked == Some(*name)) {
            chosen = known;
        }
        let kind = range.split(';').next().unwrap_or_default().trim();
        if kind == "text/plain" && matches!(parameter(range, "version"), None | Some("" | "0.0.4")) {
            break;
        }
    }
    chosen
}

fn parameter<'a>(range: &'a str, name: &str) -> Option<&'a str> {
    let pairs = range.split(';').skip(1).filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (key.trim(), value.trim())).find(|(key, _)| *key == name).map(|(_, value)| value)
}

fn quality(range: &str) -> f64 {
    parameter(range, "q").and_then(|q| q.parse().ok()).unwrap_or(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As kube-apiserver 1.37 answers; the second is what Prometheus 3 sends.
    #[test]
    fn escaping_is_negotiated() {
        let all = [
            (None, "underscores"),
            (
                Some(
                    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                     application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
                     text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
                ),
                "allow-utf-8",
            ),
            (Some("application/json"), "underscores"),
            (Some("text/plain;version=0.0.4;escaping=dots"), "dots"),
            (Some("text/plain;version=1.0.0;escaping=values"), "values"),
            (Some("text/plain;escaping=bogus"), "underscores"),
            (Some("application/openmetrics-text;escaping=dots;q=0.1, text/plain"), "underscores"),
        ];
        for (accept, escaping) in all {
            let wanted = format!("text/plain; version=0.0.4; charset=utf-8; escaping={escaping}");
            assert_eq!(content_type(accept), wanted, "{accept:?}");
        }
    }
}
