//! Sizes in bytes as people write them: `8`, `4K`, `16M`, `1G`, in powers of 1024.

/// Reads a size; the error says what would have been a size.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    parse_checked(text).ok_or_else(|| "not a size; write 8, 4K, 16M, 1G".to_owned())
}

fn parse_checked(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits_end);
    let scale: u64 = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        _ => return None,
    };
    let Some((whole, fraction)) = number.split_once('.') else {
        return number.parse::<u64>().ok()?.checked_mul(scale);
    };
    // `1.5M`: the fraction in whole bytes, rounded down as nccl-tests does.
    if fraction.len() > 9 {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let parts: u64 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let denominator = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let part_bytes = u128::from(parts) * u128::from(scale) / denominator;
    whole.checked_mul(scale)?.checked_add(u64::try_from(part_bytes).ok()?)
}

/// A size for people, as in listings of plans.
pub(crate) use ringway::plan::draw::size as display;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_powers_of_1024() {
        let table = [
            ("8", 8),
            ("0", 0),
            ("4K", 4096),
            ("4k", 4096),
            ("16M", 16 << 20),
            ("1G", 1 << 30),
            ("1 G", 1 << 30),
            ("2GiB", 2 << 30),
            ("1.5M", 3 << 19),
            (".5K", 512),
            ("1T", 1 << 40),
        ];
        for (text, bytes) in table {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_says_what_would_be() {
        for text in ["1Q", "", "M", "-1", "1..2", "1e3", "0x10", "99999999999G", "1.0000000000"] {
            let error = parse(text).unwrap_err();
            assert!(error.contains("16M"), "{text}: {error}");
        }
    }

    #[test]
    fn sizes_are_shown_short() {
        assert_eq!(display(24), "24 B");
        assert_eq!(display(1536), "1.5 KiB");
        assert_eq!(display(128 << 20), "128 MiB");
        assert_eq!(display(5 << 40), "5 TiB");
    }
}
