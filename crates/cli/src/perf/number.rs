//! Numbers as C's `printf` writes them, which is what readers of nccl-tests' tables expect.

/// Fits a number into `width` characters by giving up decimals, then by an exponent.
pub(crate) fn fit(value: f64, width: usize) -> String {
    for decimals in [2, 1, 0] {
        let text = format!("{value:width$.decimals$}");
        if text.len() <= width {
            return text;
        }
    }
    let text = exponent(value, usize::from(width >= 7));
    format!("{text:>width$}").chars().take(width).collect()
}

/// `%g`: six significant digits, no trailing zeros, an exponent for the very large or small.
pub(crate) fn general(value: f64) -> String {
    const DIGITS: i32 = 6;
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { "0".to_owned() } else { value.to_string().to_lowercase() };
    }
    let scientific = exponent(value, 5);
    let power: i32 =
        scientific.split_once('e').and_then(|(_, power)| power.parse().ok()).unwrap_or(0);
    if (-4..DIGITS).contains(&power) {
        let decimals = usize::try_from(DIGITS - 1 - power).unwrap_or(0);
        return without_trailing_zeros(&format!("{value:.decimals$}")).to_owned();
    }
    match scientific.split_once('e') {
        Some((mantissa, power)) => format!("{}e{power}", without_trailing_zeros(mantissa)),
        None => scientific,
    }
}

/// `%.Ne`: at least two digits of exponent, with a sign.
fn exponent(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$e}");
    match text.split_once('e') {
        Some((mantissa, power)) => match power.strip_prefix('-') {
            Some(power) => format!("{mantissa}e-{power:0>2}"),
            None => format!("{mantissa}e+{power:0>2}"),
        },
        None => text,
    }
}

fn without_trailing_zeros(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_shrink_to_fit() {
        let table = [
            (0.0, 6, "  0.00"),
            (99.094, 7, "  99.09"),
            (325.23, 7, " 325.23"),
            (1737.84, 7, "1737.84"),
            (21845.4, 7, "21845.4"),
            (218_454.4, 7, " 218454"),
            (1_234_567.0, 7, "1234567"),
            (12_345_678.0, 7, "1.2e+07"),
            (124.0, 6, "124.00"),
            (1245.6, 6, "1245.6"),
            (123_456.0, 6, "123456"),
            (1_234_567.0, 6, " 1e+06"),
        ];
        for (value, width, text) in table {
            assert_eq!(fit(value, width), text, "{value}");
        }
    }

    #[test]
    fn general_numbers_look_as_in_c() {
        let table = [
            (0.0, "0"),
            (56.3994, "56.3994"),
            (60.168, "60.168"),
            (156.742_4, "156.742"),
            (210.99, "210.99"),
            (1.0, "1"),
            (999_999.5, "1e+06"),
            (1_234_567.0, "1.23457e+06"),
            (0.000_123_456_7, "0.000123457"),
            (0.000_012_345_67, "1.23457e-05"),
            (100_000.0, "100000"),
        ];
        for (value, text) in table {
            assert_eq!(general(value), text, "{value}");
        }
    }
}
