//! Sizes and durations as people write them: `4GiB`, `512MiB`, `300s`, `250ms`.
//!
//! Called by the argument parser and by everything that prints. A bare number is refused: a unit
//! that has to be guessed is wrong by a factor of a thousand half of the time.

use std::time::Duration;

use tessera_client::NamespaceDigest;

const BYTE_UNITS: [(&str, u64); 5] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// Longest name of a tenant with a quota: it is part of the name of a counter.
const NAME_BYTES_MAX: usize = 128;

const TIME_UNITS: [(&str, u64); 5] = [
    ("ms", 1),
    ("s", 1_000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
];

/// Bytes of a size such as `4GiB`, or a message that names the units.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    scale(
        text,
        &BYTE_UNITS,
        "a size is a whole number with a unit, such as 512MiB or 4GiB",
    )
}

/// The limit of a tenant, or without a name of each that has none of its own.
pub(crate) type Quota = (Option<String>, u64);

/// A tenant and a size such as `team-a=4GiB`, or `*=4GiB`, or a message that says so.
pub(crate) fn parse_quota(text: &str) -> Result<Quota, String> {
    let split = text.split_once('=');
    let Some((name, size)) = split.filter(|(name, _)| is_name(name)) else {
        return Err("a quota is a tenant and a size, such as team-a=4GiB or *=4GiB".to_owned());
    };
    let bytes = parse_size(size)?;
    Ok(((name != "*").then(|| name.to_owned()), bytes))
}

/// The digest of a namespace, or a message that says how it is written.
pub(crate) fn parse_namespace(text: &str) -> Result<NamespaceDigest, String> {
    let message = || "a namespace is named by 64 hexadecimal digits, as engines log it".to_owned();
    let digits = text.as_bytes();
    if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(message());
    }
    let mut digest = [0; 32];
    for (byte, at) in digest.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).map_err(|_error| message())?;
    }
    Ok(NamespaceDigest(digest))
}

/// How long the objects of a tenant are found, seconds; without a name, those of all others.
pub(crate) type Ttl = (Option<String>, u32);

/// A duration such as `24h`, of a tenant as in `team-a=1h`, or a message that says so.
pub(crate) fn parse_ttl(text: &str) -> Result<Ttl, String> {
    let (name, duration) = match text.split_once('=') {
        Some((name, duration)) => (Some(name), duration),
        None => (None, text),
    };
    if name.is_some_and(|name| !is_name(name)) {
        return Err("a lifetime is a duration such as 24h, or of a tenant team-a=1h".to_owned());
    }
    let seconds = parse_duration(duration)?.as_secs();
    let seconds = u32::try_from(seconds).ok().filter(|seconds| *seconds > 0);
    let seconds = seconds.ok_or("a lifetime is one second to 100 years")?;
    Ok((name.map(str::to_owned), seconds))
}

fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(|c| c.is_ascii_graphic())
}

/// A duration such as `300s`, `250ms`, `5m`, `1h` or `7d`, or a message that names the units.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    scale(
        text,
        &TIME_UNITS,
        "a duration is a whole number with ms, s, m, h or d, such as 300s",
    )
    .map(Duration::from_millis)
}

/// `1.5 GiB` for people; exact multiples are shown without a fraction.
pub(crate) fn format_size(bytes: u64) -> String {
    let (name, unit) = BYTE_UNITS
        .iter()
        .rev()
        .find(|(_, unit)| bytes >= *unit)
        .unwrap_or(&BYTE_UNITS[0]);
    if bytes.is_multiple_of(*unit) {
        format!("{} {name}", bytes / unit)
    } else {
        format!("{:.1} {name}", bytes as f64 / *unit as f64)
    }
}

fn scale(text: &str, units: &[(&str, u64)], usage: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| usage.to_owned())?;
    let unit = unit.trim_start();
    let (_, factor) = units
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(unit))
        .ok_or_else(|| usage.to_owned())?;
    number
        .checked_mul(*factor)
        .ok_or_else(|| format!("{text} is more than 64 bits can hold"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        for (text, bytes) in [
            ("0B", 0),
            ("64KiB", 64 << 10),
            ("512 MiB", 512 << 20),
            ("4GiB", 4 << 30),
            ("4gib", 4 << 30),
            ("2TiB", 2 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn a_size_without_a_unit_or_with_a_wrong_one_is_refused_with_the_usage() {
        for text in ["", "4", "GiB", "4GB", "4G", "-1GiB", "1.5GiB", "4GiBs"] {
            let message = parse_size(text).expect_err(text);
            assert!(message.contains("512MiB"), "{text}: {message}");
        }
        assert!(parse_size("99999999TiB").is_err());
    }

    #[test]
    fn durations_read_as_people_write_them() {
        for (text, millis) in [
            ("250ms", 250),
            ("300s", 300_000),
            ("5m", 300_000),
            ("1h", 3_600_000),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(millis)),
                "{text}"
            );
        }
        assert!(parse_duration("300").is_err());
    }

    #[test]
    fn sizes_print_in_the_largest_unit_that_fits() {
        assert_eq!(format_size(0), "0 B");
        assert_eq!(format_size(64 << 10), "64 KiB");
        assert_eq!(format_size(3 << 29), "1.5 GiB");
    }
}
