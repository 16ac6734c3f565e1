//! Numbers, as Go's `strconv.FormatFloat(value, 'g', -1, 64)` writes them.

/// The text of a number: the shortest that reads as the same number, with an exponent below -4 and from 6 on.
pub(crate) fn number(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let text = format!("{value:e}");
    // `NaN` has no exponent.
    let Some((mantissa, exponent)) = text.split_once('e') else { return text };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..6).contains(&exponent) {
        return value.to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_numbers_as_prometheus() {
        let all = [0.0, 1.0, 0.25, 100_000.0, 999_999.5, 1_000_000.0, 1_763_765_123.5, 0.0001, 0.000_012];
        let shown: Vec<String> = all.iter().map(|n| number(*n)).collect();
        let wanted = "0 1 0.25 100000 999999.5 1e+06 1.7637651235e+09 0.0001 1.2e-05";
        assert_eq!(shown.join(" "), wanted);
        assert_eq!([f64::INFINITY, f64::NEG_INFINITY, f64::NAN].map(number), ["+Inf", "-Inf", "NaN"]);
    }

    proptest::proptest! {
        #[test]
        fn what_is_written_reads_as_the_same_number(value in proptest::num::f64::NORMAL) {
            proptest::prop_assert_eq!(number(value).parse::<f64>().unwrap(), value);
        }
    }
}
