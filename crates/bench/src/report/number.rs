//! Numbers as people read them.

use crate::run::Unit;

/// What a rate of `unit` is told in.
pub fn unit_name(unit: Unit) -> &'static str {
    match unit {
        Unit::Bytes => "MiB/s",
        Unit::Operations => "ops/s",
    }
}

/// A rate of `unit` in what [`unit_name`] says.
pub fn in_unit(rate: f64, unit: Unit) -> f64 {
    match unit {
        Unit::Bytes => rate / f64::from(1 << 20),
        Unit::Operations => rate,
    }
}

/// A rate of `unit` with three digits at least, thousands apart.
pub fn rate(rate: f64, unit: Unit) -> String {
    plain(in_unit(rate, unit))
}

/// A number with three digits at least, thousands apart by a narrow space.
pub fn plain(number: f64) -> String {
    if !number.is_finite() {
        return "-".into();
    }
    let digits = if number == 0.0 || number.abs() >= 100.0 {
        0
    } else if number.abs() >= 10.0 {
        1
    } else {
        2
    };
    let text = format!("{number:.digits$}");
    let (whole, part) = text.split_once('.').map_or((text.as_str(), ""), |(whole, part)| (whole, part));
    let (sign, whole) = whole.strip_prefix('-').map_or(("", whole), |whole| ("-", whole));
    let mut apart = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            apart.push('\u{202f}');
        }
        apart.push(digit);
    }
    if part.is_empty() { format!("{sign}{apart}") } else { format!("{sign}{apart}.{part}") }
}

/// A number for the side of a plot, short: `1.5k`, `20M`.
pub fn short(number: f64) -> String {
    let (divisor, letter) = match number.abs() {
        size if size >= 1e9 => (1e9, "G"),
        size if size >= 1e6 => (1e6, "M"),
        size if size >= 1e3 => (1e3, "k"),
        _ => (1.0, ""),
    };
    let text = format!("{:.2}", number / divisor);
    format!("{}{letter}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Bytes in the largest unit that leaves a whole number of one digit at least.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut size = bytes as f64;
    let mut at = 0;
    while size >= 1024.0 && at + 1 < UNITS.len() {
        size /= 1024.0;
        at += 1;
    }
    let text = format!("{size:.1}");
    format!("{} {}", text.trim_end_matches(".0"), UNITS[at])
}

/// Microseconds; nothing for 0, which a program that does not tell leaves.
pub fn micros(micros: f64) -> String {
    if micros > 0.0 { plain(micros) } else { "-".into() }
}

/// A part (0 to 1) in per cent.
pub fn percent(part: f64) -> String {
    let percent = part * 100.0;
    if percent.abs() < 9.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

/// Seconds as `8 min 20 s`.
pub fn time(seconds: f64) -> String {
    let whole = seconds.round().max(0.0) as u64;
    match (whole / 3600, whole / 60 % 60, whole % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_told_as_people_read_them() {
        assert_eq!(
            [0.0, 1.234, 12.34, 123.4, 1234.0].map(plain),
            ["0", "1.23", "12.3", "123", "1\u{202f}234"]
        );
        assert_eq!(plain(-7_654_321.0), "-7\u{202f}654\u{202f}321");
        assert_eq!([0.0, 20.0, 1500.0, 2e7].map(short), ["0", "20", "1.5k", "20M"]);
        assert_eq!([0, 1024, 3 << 20, 1_610_612_736].map(bytes), ["0 bytes", "1 KiB", "3 MiB", "1.5 GiB"]);
        assert_eq!([5.0, 500.4, 7260.0].map(time), ["5 s", "8 min 20 s", "2 h 1 min"]);
        assert_eq!([0.034, 0.97].map(percent), ["3.4 %", "97 %"]);
        assert_eq!(rate(1048576.0 * 2048.0, Unit::Bytes), "2\u{202f}048");
        assert_eq!(micros(0.0), "-");
    }
}
