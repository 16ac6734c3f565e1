//! Enumerations that are numbers on the wire.

/// Two functions, from a type to its number and back. Numbers that are not known become the last one of the list.
macro_rules! numbers {
    ($to:ident, $from:ident, $type:ty, [$($number:literal => $variant:path),+ $(,)?], else $other:path) => {
        // Of some enumerations one direction is not needed.
        #[allow(dead_code)]
        pub(crate) fn $to(value: $type) -> i32 {
            match value { $($variant => $number),+ }
        }

        #[allow(dead_code)]
        pub(crate) fn $from(number: i32) -> $type {
            match number { $($number => $variant,)+ _ => $other }
        }
    };
}
