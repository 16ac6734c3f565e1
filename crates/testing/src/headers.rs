//! Headers as text, for expectations.
//!
//! Invariant: the text does not depend on the order in which headers were added.

use http::HeaderMap;

/// One line a header, sorted.
pub fn show(headers: &HeaderMap) -> String {
    let line = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes()))
    };
    let mut lines: Vec<String> = headers.iter().map(line).collect();
    lines.sort();
    lines.concat()
}

/// Headers of these names and values.
pub fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    let pair = |&(name, value): &(&'static str, &'static str)| {
        (http::HeaderName::from_static(name), http::HeaderValue::from_static(value))
    };
    let mut headers = HeaderMap::new();
    for (name, value) in pairs.iter().map(pair) {
        headers.append(name, value);
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_every_value_in_a_fixed_order() {
        assert_eq!(show(&headers(&[("b", "2"), ("a", "1"), ("b", "1")])), "a: 1\nb: 1\nb: 2\n");
    }
}
