//! Upstream's canonical forms, and arithmetic against integers of nano units.

use super::*;
use proptest::prelude::*;
use serde_json::json;

fn q(s: &str) -> Quantity {
    Quantity::parse(s).unwrap()
}

#[test]
fn prints_canonical_forms() {
    let cases = "0 0|00 0|0Ki 0|0n 0|- 0|Mi 0|1 1|1000 1k|1000m 1|1024Ki 1Mi|1024Mi 1Gi|307200Ki 300Mi|1025024Mi 1001Gi|\
        1024Gi 1Ti|3Ei 3Ei|10Ti 10Ti|0.5 500m|5000m 5|0.5Mi 512Ki|1.5Gi 1536Mi|0.025Ti 27487790694400m|1.G 1.G|92.Gi 92.Gi|8.Gi 8Gi|1. 1.|.001 1m|\
        .0001k 100m|1e3 1e3|1E3 1E3|1e03 1e03|1e+3 1e+3|1e1 10|12e6 12e6|1e-3 1e-3|1000e-12 1e-9|1e14 100e12|.001e12 1e9|\
        0.5e-2 5e-3|100.035k 100.035k|0.0005k 500m|3.001n 4n|0.9n 1n|0.0000000001 1n|0.00000012345 124n|0.000000000001Ki 2n|\
        12E 12E|1000E 1e21|1025 1025|1001 1001|1100 1100|500Mi 500Mi|8Ki 8Ki|100Ti 100Ti|1500 1500|1.500 1.500|+1 +1|01 01|\
        -1 -1|-1.5 -1500m|-2Ki -2Ki|-1000 -1k|1Ei 1Ei|9Ei 9223372036854775807|-9Ei -9223372036854775807|8Ei 9223372036854775807|\
        999999999999999999999 999999999999999999999|1000000000000000000000 1e21|100.035Ki 102435840m|1023 1023|1024 1024|\
        0.1Ki 102400m|1e4294967296 1e4294967296";
    for case in cases.split('|') {
        let (input, want) = case.trim().split_once(' ').unwrap();
        assert_eq!(q(input).to_string(), want, "{input}");
    }
}

#[test]
fn rejects_invalid_quantities() {
    let cases = [
        ("", QuantityError::Format),
        ("abc", QuantityError::Format),
        ("1.2.3", QuantityError::Format),
        ("1 Ki", QuantityError::Format),
        ("1e5x", QuantityError::Format),
        ("1Mii", QuantityError::Suffix),
        ("1e", QuantityError::Suffix),
        ("1ki", QuantityError::Suffix),
        ("1-5", QuantityError::Suffix),
        ("1mi", QuantityError::Suffix),
        ("e-20", QuantityError::Numeric),
        ("--1", QuantityError::Suffix),
    ];
    for (input, want) in cases {
        assert_eq!(Quantity::parse(input).unwrap_err(), want, "{input}");
    }
    assert_eq!(QuantityError::Suffix.to_string(), "unable to parse quantity's suffix");
    assert_eq!(Quantity::from_value(&json!(true)).unwrap_err(), QuantityError::Format);
}

#[test]
fn reads_json_values() {
    assert_eq!(Quantity::from_value(&json!(" 1.5 ")).unwrap().to_string(), "1500m");
    assert_eq!(Quantity::from_value(&json!(2000)).unwrap().to_string(), "2k");
    assert_eq!(Quantity::from_value(&json!(0.1)).unwrap().to_string(), "100m");
    assert_eq!(Quantity::from_value(&json!(null)).unwrap().to_string(), "0");
    assert_eq!(Value::from(&q("0.5")), json!("500m"));
}

#[test]
fn rounds_up_to_integers() {
    for (s, value, milli) in [
        ("1500m", 2, 1500),
        ("-1500m", -2, -1500),
        ("1n", 1, 1),
        ("2Gi", 2 << 30, (2 << 30) * 1000),
        ("0", 0, 0),
        ("1E", 1_000_000_000_000_000_000, i64::MAX),
        ("1e100", i64::MAX, i64::MAX),
        ("-1e100", i64::MIN, i64::MIN),
        ("10.1", 11, 10_100),
        ("1.0001", 2, 1001),
    ] {
        assert_eq!((q(s).value(), q(s).milli_value()), (value, milli), "{s}");
    }
    assert_eq!((q("1.5").as_i64(), q("1500").as_i64(), q("1e30").as_i64()), (None, Some(1500), None));
    assert_eq!((q("1.5").as_f64(), q("1Ki").as_f64(), q("-2e-3").as_f64()), (1.5, 1024.0, -0.002));
    assert_eq!(q("9.01").round_up(-1).0.to_string(), "9100m");
    assert_eq!(q("-9.01").round_up(2), (q("-100"), false));
}

#[test]
fn arithmetic_keeps_the_family() {
    assert_eq!(q("1Gi").add(&q("1G")).format(), Format::BinarySi);
    assert_eq!(Quantity::default().add(&q("1Gi")).to_string(), "1Gi");
    assert_eq!(Quantity::default().sub(&q("1Gi")).to_string(), "-1Gi");
    assert_eq!(q("1Gi").sub(&q("1Mi")).to_string(), "1023Mi");
    assert_eq!(q("901e-2").neg().to_string(), "-9010e-3");
    assert_eq!([q("100m"), q("0.9"), q("1")].into_iter().sum::<Quantity>().to_string(), "2");
    let mut sum = q("1");
    sum += &q("500m");
    sum -= &q("1m");
    assert_eq!(sum.to_string(), "1499m");
    assert_eq!(q("4Ei").mul(1024 * 1024).to_string(), "4194304Ei");
}

#[test]
fn wide_values_are_exact() {
    let big = q("100000000000000000000000000000000000000000000");
    assert_eq!(big.add(&q("1n")).sub(&big).to_string(), "1n");
    assert!(big.add(&q("1n")) > big && big.neg() < q("-1n"));
    assert_eq!(big.mul(-3).neg().to_string(), "300e42");
    assert!(big.add(&q("1n")).neg() < big.neg());
    assert_eq!(big.add(&q("1n")).value(), i64::MAX);
    let digits = "123456789012345678901234567890123456789012345678901";
    assert_eq!(q(digits).to_string(), digits);
}

#[test]
fn hostile_exponents_cost_nothing() {
    let (huge, tiny) = (q("1e2000000000"), q("1n"));
    assert!(huge > tiny && huge.neg() < tiny && huge.cmp_i64(i64::MAX).is_gt());
    assert_eq!(huge.add(&tiny), huge);
    assert_eq!(tiny.sub(&huge), huge.neg());
    assert_eq!(huge.value(), i64::MAX);
    assert_eq!(q("1e-2000000000"), tiny);
    assert_eq!(Quantity::parse(&"9".repeat(5000)).unwrap_err(), QuantityError::Numeric);
}

/// A decimal text of at most nine fraction digits, and its value in nano units.
fn decimal() -> impl Strategy<Value = (String, i128)> {
    (any::<bool>(), 0_i128..1_000_000_000_000_000_000_000, 0_usize..=9).prop_map(
        |(negative, mantissa, places)| {
            let digits = format!("{mantissa:0>width$}", width = places + 1);
            let (whole, fraction) = digits.split_at(digits.len() - places);
            let sign = if negative { "-" } else { "" };
            let nanos = mantissa * 10_i128.pow(9 - places as u32);
            (format!("{sign}{whole}.{fraction}"), if negative { -nanos } else { nanos })
        },
    )
}

fn nanos(q: &Quantity) -> i128 {
    q.to_string().parse::<Quantity>().unwrap().amount.nanos()
}

proptest! {
    #[test]
    fn parses_exactly((text, want) in decimal()) {
        let quantity = q(&text);
        prop_assert_eq!(quantity.amount.nanos(), want);
        prop_assert_eq!(nanos(&quantity), want);
    }

    #[test]
    fn canonical_forms_round_trip(number in "[0-9]{1,25}(\\.[0-9]{0,12})?", suffix in "n|u|m||k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|e[0-9]{1,2}|e-[0-9]") {
        let quantity = q(&format!("{number}{suffix}"));
        let printed = quantity.to_string();
        let again = q(&printed);
        prop_assert_eq!(&again, &quantity);
        prop_assert_eq!(again.to_string(), printed);
    }

    #[test]
    fn arithmetic_agrees((a, x) in decimal(), (b, y) in decimal(), k in -1000_i64..1000) {
        let (a, b) = (q(&a), q(&b));
        prop_assert_eq!(a.add(&b).amount.nanos(), x + y);
        prop_assert_eq!(a.sub(&b).amount.nanos(), x - y);
        prop_assert_eq!(a.mul(k).amount.nanos(), x * i128::from(k));
        prop_assert_eq!(a.cmp(&b), x.cmp(&y));
        prop_assert_eq!(a.sign(), x.signum() as i32);
        let away = |v: i128, d: i128| v / d + (v % d).signum();
        prop_assert_eq!(i128::from(a.value()), away(x, 1_000_000_000).clamp(i64::MIN.into(), i64::MAX.into()));
        prop_assert_eq!(i128::from(a.milli_value()), away(x, 1_000_000).clamp(i64::MIN.into(), i64::MAX.into()));
    }

    #[test]
    fn order_is_total_over_wide_values(
        a in "-?[0-9]{1,60}(e-?[0-9]{1,2})?", b in "-?[0-9]{1,60}(e-?[0-9]{1,2})?", c in "-?[0-9]{1,60}(e-?[0-9]{1,2})?"
    ) {
        let (a, b, c) = (q(&a), q(&b), q(&c));
        prop_assert_eq!(a.cmp(&b), b.cmp(&a).reverse());
        prop_assert_eq!(a.cmp(&b), a.sub(&b).cmp_i64(0));
        prop_assert_eq!(a.cmp(&b), a.add(&c).cmp(&b.add(&c)));
        prop_assert_eq!(a.add(&b).sub(&b), a);
    }

    #[test]
    fn never_panics(s in "[-+.0-9eEinumkKMGTP]{0,24}") {
        if let Ok(quantity) = Quantity::parse(&s) {
            let _ = (quantity.to_string(), quantity.value(), quantity.milli_value(), quantity.as_f64());
        }
    }
}
