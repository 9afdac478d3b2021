//! Text to numbers, sizes, durations, words and lists, with problems that say what would do.
//!
//! Everything here is pure; the command line shares [`parse_bytes`] and [`parse_duration`].

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::names;

/// Why a value cannot be taken.
#[derive(Debug)]
pub(super) struct Problem {
    /// The cause and the valid values.
    pub(super) text: String,
    /// The nearest valid value, where taking it is what the user most likely wanted.
    pub(super) clamp: Option<String>,
}

impl Problem {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), clamp: None }
    }

    /// The same problem, for values where the nearest valid one would be a wrong guess.
    pub(super) fn unclamped(self) -> Self {
        Self { clamp: None, ..self }
    }
}

impl From<String> for Problem {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

/// Something to say about a value that was taken.
#[derive(Debug)]
pub(super) enum Remark {
    /// Worth knowing.
    Note(String),
    /// Part of the value was not understood.
    Warning(String),
}

/// Parses a number of bytes: `8`, `4K`, `16M`, `1G`, `1.5M`, `64KiB`, `64KB` (K is always 1024).
///
/// # Errors
/// Text that says what would have been taken.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(not_bytes()),
    };
    let scaled = decimal(number, 1u64 << shift).ok_or_else(not_bytes)?;
    u64::try_from(scaled).map_err(|_| "more bytes than 64 bits can count".to_owned())
}

fn not_bytes() -> String {
    "not a number of bytes such as 65536, 64K, 16M or 1G".to_owned()
}

/// Parses a duration: `500ms`, `30s`, `10m`, `1m30s`, `2h`; a bare number is seconds.
///
/// # Errors
/// Text that says what would have been taken.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || "not a duration such as 500ms, 30s, 10m or 2h".to_owned();
    let mut rest = text.trim();
    let mut total_ns = 0;
    if let Some(seconds_ns) = decimal(rest, 1_000_000_000) {
        total_ns = seconds_ns;
        rest = "";
    } else if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let split = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(split);
        let end = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let unit_ns = match unit {
            "ns" => 1,
            "us" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" | "min" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "d" => 86_400_000_000_000,
            _ => return Err(wrong()),
        };
        let part = decimal(number, unit_ns).ok_or_else(wrong)?;
        total_ns = total_ns.checked_add(part).ok_or_else(wrong)?;
        rest = tail;
    }
    u64::try_from(total_ns)
        .map(Duration::from_nanos)
        .map_err(|_| "longer than 584 years".to_owned())
}

/// `number × unit` for a decimal number, where that is a whole number.
fn decimal(number: &str, unit: u64) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || fraction.is_empty() || fraction.len() > 9 || fraction.contains('.') {
        return None;
    }
    let scale = 10u128.pow(u32::try_from(fraction.len()).ok()?);
    let part = fraction.parse::<u128>().ok()? * u128::from(unit);
    if !part.is_multiple_of(scale) {
        return None;
    }
    whole.parse::<u128>().ok()?.checked_mul(u128::from(unit))?.checked_add(part / scale)
}

/// A number of bytes as [`parse_bytes`] takes it: `4M`, or plain digits.
#[must_use]
pub fn format_bytes(bytes: u64) -> String {
    let units = [(30, 'G'), (20, 'M'), (10, 'K')];
    units
        .iter()
        .find(|(shift, _)| bytes != 0 && bytes.trailing_zeros() >= *shift)
        .map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

/// A duration as [`parse_duration`] takes it: `10m`, `90s`, `500ms`.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let ns = duration.as_nanos();
    let units = [
        (3_600_000_000_000, "h"),
        (60_000_000_000, "m"),
        (1_000_000_000, "s"),
        (1_000_000, "ms"),
        (1_000, "us"),
        (1, "ns"),
    ];
    units
        .iter()
        .find(|(unit, _)| ns != 0 && ns.is_multiple_of(*unit))
        .map_or_else(|| "0s".to_owned(), |(unit, name)| format!("{}{name}", ns / unit))
}

/// A whole number (decimal, or hexadecimal after `0x`) in a range; outside it, clamped.
pub(super) fn number<T>(text: &str, range: RangeInclusive<T>) -> Result<T, Problem>
where
    T: TryFrom<i128> + Into<i128> + Display + Copy,
{
    let (low, high) = (*range.start(), *range.end());
    let wrong = || format!("not a whole number from {low} to {high}");
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).map(i128::from),
        None => text.parse::<i128>(),
    };
    let value = parsed.map_err(|_| wrong())?;
    within(value, low, high, |bound| bound.to_string(), |v| v.into())
        .and_then(|v| T::try_from(v).map_err(|_| Problem::new(wrong())))
}

/// A number of bytes in a range; outside it, clamped.
pub(super) fn bytes(text: &str, range: RangeInclusive<u64>) -> Result<u64, Problem> {
    within(parse_bytes(text)?, *range.start(), *range.end(), format_bytes, |v| v)
}

/// A duration in a range; outside it, clamped.
pub(super) fn duration(text: &str, range: RangeInclusive<Duration>) -> Result<Duration, Problem> {
    within(parse_duration(text)?, *range.start(), *range.end(), format_duration, |v| v)
}

fn within<T: Copy, V: PartialOrd>(
    value: V,
    low: T,
    high: T,
    show: impl Fn(T) -> String,
    widen: impl Fn(T) -> V,
) -> Result<V, Problem> {
    let bound = if value < widen(low) {
        low
    } else if value > widen(high) {
        high
    } else {
        return Ok(value);
    };
    let text = format!("not from {} to {}", show(low), show(high));
    Err(Problem { text, clamp: Some(show(bound)) })
}

/// `auto`, or what `parse` takes.
pub(super) fn auto<T>(
    text: &str,
    parse: impl FnOnce(&str) -> Result<T, Problem>,
) -> Result<Option<T>, Problem> {
    if text.eq_ignore_ascii_case("auto") {
        return Ok(None);
    }
    parse(text)
        .map(Some)
        .map_err(|problem| Problem { text: format!("{}, nor auto", problem.text), ..problem })
}

/// 0 or 1, or a word for them.
pub(super) fn boolean(text: &str) -> Result<bool, Problem> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err(Problem::new("neither 0 nor 1")),
    }
}

/// One of some words, whatever their case.
pub(super) fn word<T: Copy>(text: &str, choices: &[(&str, T)]) -> Result<T, Problem> {
    choices
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(text))
        .map(|(_, value)| *value)
        .ok_or_else(|| Problem::new(not_one_of(text, choices.iter().map(|(name, _)| *name))))
}

/// "not one of a, b, c (did you mean b?)"
pub(super) fn not_one_of<'a>(text: &str, names: impl Iterator<Item = &'a str> + Clone) -> String {
    let mut message = format!("not one of {}", names.clone().collect::<Vec<_>>().join(", "));
    if let Some(nearest) = names::nearest(text, names) {
        message.push_str(&format!(" (did you mean {nearest}?)"));
    }
    message
}

/// The words of a comma-separated list, without blanks and empty ones.
pub(super) fn words(text: &str) -> Vec<&str> {
    text.split(',').map(str::trim).filter(|word| !word.is_empty()).collect()
}

/// Takes a mark (`^`, `=`) off the start of a list, where it counts for the whole list.
///
/// A mark on a later word is a common slip: it is dropped where the first word has it too, and
/// the word is dropped where the first has none; both are said.
pub(super) fn take_mark(mark: char, words: &mut Vec<&str>, remarks: &mut Vec<Remark>) -> bool {
    let marked = words.first().is_some_and(|word| word.starts_with(mark));
    let mut first = true;
    words.retain_mut(|word| {
        let leads = std::mem::take(&mut first);
        let Some(bare) = word.strip_prefix(mark) else {
            return true;
        };
        if !leads {
            let fate = if marked { "read without it" } else { "ignored" };
            remarks.push(Remark::Warning(format!(
                "{mark} counts once, at the start, for the whole list; {} is {fate}",
                shown(word)
            )));
        }
        *word = bare.trim();
        marked && !word.is_empty()
    });
    marked
}

/// A user's text, fit for one line of a message.
pub(super) fn shown(text: &str) -> String {
    const LONGEST: usize = 120;
    let mut line: String = text.chars().take(LONGEST).flat_map(visible).collect();
    if text.chars().nth(LONGEST).is_some() {
        line.push('…');
    }
    line
}

fn visible(c: char) -> impl Iterator<Item = char> {
    let (plain, escaped) =
        if c.is_control() { (None, Some(c.escape_default())) } else { (Some(c), None) };
    plain.into_iter().chain(escaped.into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_take_suffixes_and_name_what_would_do() {
        let good = [
            ("0", 0),
            ("8", 8),
            ("4K", 4096),
            ("4k", 4096),
            ("64KiB", 65536),
            ("64 KB", 65536),
            ("16M", 16 << 20),
            ("1G", 1 << 30),
            ("1.5M", 3 << 19),
            ("16777215T", 16_777_215 << 40),
        ];
        for (text, value) in good {
            assert_eq!(parse_bytes(text), Ok(value), "{text}");
        }
        for text in ["", "K", "-1", "4X", "1.2.3", "0.3", ".5", "1e6", "99999999T", "４K"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_take_units_and_sums_of_them() {
        let good = [
            ("30", 30_000),
            ("0.5", 500),
            ("500ms", 500),
            ("30s", 30_000),
            ("10m", 600_000),
            ("1m30s", 90_000),
            ("2h", 7_200_000),
            ("1.5s", 1_500),
        ];
        for (text, ms) in good {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "1m30", "30 s", "-1s", "1y", "never", "600000000000h", "1s2"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn formats_are_read_back() {
        for value in [0, 1, 1023, 1024, 4 << 20, (4 << 20) + 1, u64::MAX] {
            assert_eq!(parse_bytes(&format_bytes(value)), Ok(value));
        }
        for ms in [0, 1, 999, 1000, 90_000, 600_000, 3_600_000] {
            let value = Duration::from_millis(ms);
            assert_eq!(parse_duration(&format_duration(value)), Ok(value));
        }
    }

    #[test]
    fn numbers_outside_their_range_are_clamped() {
        assert_eq!(number("0x10", 1..=16u32).unwrap(), 16);
        for (text, bound) in [("17", "16"), ("0", "1"), ("-3", "1"), ("99999999999999999", "16")] {
            assert_eq!(number(text, 1..=16u32).unwrap_err().clamp.as_deref(), Some(bound));
        }
        let problem = number("many", 1..=16u32).unwrap_err();
        assert_eq!(problem.text, "not a whole number from 1 to 16");
        assert_eq!(problem.clamp, None);
    }

    #[test]
    fn user_text_stays_on_one_short_line() {
        assert_eq!(shown("a\nb\u{1b}[31m"), "a\\nb\\u{1b}[31m");
        assert_eq!(shown(&"é".repeat(500)).chars().count(), 121);
    }
}
