//! RFC 3339 as Go's `time.Parse` reads it with the API's two layouts, errors included.

use jiff::{SignedDuration, civil};

/// In double quotes, as the `time` package does it: every byte that is not printable ASCII is escaped.
fn quote(s: &str) -> String {
    let escaped: String = s
        .bytes()
        .map(|b| match b {
            b'"' | b'\\' => format!("\\{}", char::from(b)),
            b' '..=b'~' | 0x7f => char::from(b).to_string(),
            _ => format!("\\x{b:02x}"),
        })
        .collect();
    format!("\"{escaped}\"")
}

/// A text that is not a time. Displays as Go's `ParseError`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseTimeError {
    /// The text does not follow the layout.
    #[error("parsing time {} as {}: cannot parse {} as {}", quote(.value), quote(.layout), quote(.rest), quote(.element))]
    Layout {
        /// The whole text.
        value: String,
        /// The layout it should have.
        layout: &'static str,
        /// Where it stopped making sense.
        rest: String,
        /// The part of the layout expected there.
        element: &'static str,
    },
    /// A part is out of range, or there is more text than layout.
    #[error("parsing time {}: {message}", quote(.value))]
    Range {
        /// The whole text.
        value: String,
        /// What is wrong.
        message: String,
    },
}

const SECONDS: &str = "2006-01-02T15:04:05Z07:00";
const MICROS: &str = "2006-01-02T15:04:05.000000Z07:00";

struct Reader<'a> {
    value: &'a str,
    rest: &'a str,
    layout: &'static str,
}

impl Reader<'_> {
    fn fail<T>(&self, element: &'static str) -> Result<T, ParseTimeError> {
        let (value, rest) = (self.value.to_owned(), self.rest.to_owned());
        Err(ParseTimeError::Layout { value, layout: self.layout, rest, element })
    }

    fn out_of_range<T>(&self, what: &str) -> Result<T, ParseTimeError> {
        Err(ParseTimeError::Range { value: self.value.to_owned(), message: format!("{what} out of range") })
    }

    fn literal(&mut self, text: &'static str) -> Result<(), ParseTimeError> {
        match self.rest.strip_prefix(text) {
            Some(rest) => self.rest = rest,
            None => return self.fail(text),
        }
        Ok(())
    }

    /// `n` digits that stand for a layout element.
    fn digits(&mut self, n: usize, element: &'static str) -> Result<i32, ParseTimeError> {
        let head = self.rest.as_bytes().get(..n).filter(|h| h.iter().all(u8::is_ascii_digit));
        let Some(head) = head else { return self.fail(element) };
        let number = head.iter().fold(0, |acc, b| acc * 10 + i32::from(b - b'0'));
        self.rest = &self.rest[n..];
        Ok(number)
    }

    /// A fraction, its separator included; at most nine digits count.
    fn fraction(&mut self, len: usize) -> i32 {
        let digits = self.rest.as_bytes()[1..len].iter().take(9);
        let (nanos, n) = digits.fold((0, 0), |(acc, n), b| (acc * 10 + i32::from(b - b'0'), n + 1));
        self.rest = &self.rest[len..];
        nanos * 10_i32.pow(9 - n)
    }

    fn optional_fraction(&mut self) -> i32 {
        let mut bytes = self.rest.bytes();
        if !matches!(bytes.next(), Some(b'.' | b',')) {
            return 0;
        }
        match bytes.take_while(u8::is_ascii_digit).count() {
            0 => 0,
            digits => self.fraction(digits + 1),
        }
    }

    /// Offset from UTC in seconds.
    fn offset(&mut self) -> Result<i32, ParseTimeError> {
        const ELEMENT: &str = "Z07:00";
        if let Some(rest) = self.rest.strip_prefix('Z') {
            self.rest = rest;
            return Ok(0);
        }
        let [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2, ..] = *self.rest.as_bytes() else {
            return self.fail(ELEMENT);
        };
        if ![h1, h2, m1, m2].iter().all(u8::is_ascii_digit) {
            return self.fail(ELEMENT);
        }
        let two = |a: u8, b: u8| i32::from(a - b'0') * 10 + i32::from(b - b'0');
        let (hours, minutes) = (two(h1, h2), two(m1, m2));
        if hours > 24 {
            return self.out_of_range("time zone offset hour");
        }
        if minutes > 60 {
            return self.out_of_range("time zone offset minute");
        }
        self.rest = &self.rest[6..];
        let seconds = hours * 3600 + minutes * 60;
        Ok(if sign == b'-' { -seconds } else { seconds })
    }

    fn date(&mut self) -> Result<[i32; 3], ParseTimeError> {
        let year = self.digits(4, "2006")?;
        self.literal("-")?;
        let month = self.digits(2, "01")?;
        if !(1..=12).contains(&month) {
            return self.out_of_range("month");
        }
        self.literal("-")?;
        let day = self.digits(2, "02")?;
        self.literal("T")?;
        Ok([year, month, day])
    }

    fn clock(&mut self) -> Result<[i32; 3], ParseTimeError> {
        // A single digit is enough, if no other digit follows.
        let single =
            matches!(self.rest.as_bytes(), [h, next, ..] if h.is_ascii_digit() && !next.is_ascii_digit());
        let hour = self.digits(if single { 1 } else { 2 }, "15")?;
        if hour > 23 {
            return self.out_of_range("hour");
        }
        self.literal(":")?;
        let minute = self.digits(2, "04")?;
        if minute > 59 {
            return self.out_of_range("minute");
        }
        self.literal(":")?;
        let second = self.digits(2, "05")?;
        if second > 59 {
            return self.out_of_range("second");
        }
        Ok([hour, minute, second])
    }
}

fn parse(value: &str, layout: &'static str) -> Result<civil::DateTime, ParseTimeError> {
    let mut r = Reader { value, rest: value, layout };
    let [year, month, day] = r.date()?;
    let [hour, minute, second] = r.clock()?;
    let nanos = if layout == MICROS {
        let head = r.rest.as_bytes().get(..7);
        if !head.is_some_and(|h| h[0] == b'.' && h[1..].iter().all(u8::is_ascii_digit)) {
            return r.fail(".000000");
        }
        r.fraction(7)
    } else {
        r.optional_fraction()
    };
    let offset = r.offset()?;
    if !r.rest.is_empty() {
        let message = format!("extra text: {}", quote(r.rest));
        return Err(ParseTimeError::Range { value: value.to_owned(), message });
    }
    // All parts but the day were checked; they fit the narrow types.
    let narrow = |n: i32| i8::try_from(n).unwrap_or(i8::MAX);
    let year = i16::try_from(year).unwrap_or(i16::MAX);
    let time = civil::Time::new(narrow(hour), narrow(minute), narrow(second), nanos);
    let (Ok(date), Ok(time)) = (civil::Date::new(year, narrow(month), narrow(day)), time) else {
        return r.out_of_range("day");
    };
    let utc = date.to_datetime(time).checked_sub(SignedDuration::from_secs(offset.into())).ok();
    // Go reads other years, and refuses to write them.
    utc.filter(|utc| (0..=9999).contains(&utc.year())).map_or_else(|| r.out_of_range("time"), Ok)
}

/// Seconds, with an optional fraction of any length.
pub(super) fn seconds(value: &str) -> Result<civil::DateTime, ParseTimeError> {
    parse(value, SECONDS)
}

/// Seconds and exactly six digits of fraction.
pub(super) fn micros(value: &str) -> Result<civil::DateTime, ParseTimeError> {
    parse(value, MICROS)
}
