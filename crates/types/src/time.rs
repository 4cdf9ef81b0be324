//! Points in time as POSIX file timestamps.

use serde::{Deserialize, Serialize};

/// Seconds and nanoseconds since the epoch of POSIX; `nanos` is always below 10^9. Seconds may be negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timespec {
    /// Whole seconds, rounded towards minus infinity.
    pub secs: i64,
    /// Nanoseconds within the second, 0..10^9.
    pub nanos: u32,
}

impl Timespec {
    /// A time; nanoseconds of 10^9 and more carry into the seconds.
    pub fn new(secs: i64, nanos: u32) -> Timespec {
        Timespec { secs: secs.saturating_add(i64::from(nanos / 1_000_000_000)), nanos: nanos % 1_000_000_000 }
    }

    /// Whole seconds from `earlier` to `self`, negative when `self` is the earlier one.
    pub fn seconds_since(self, earlier: Timespec) -> i64 {
        self.secs.saturating_sub(earlier.secs)
    }
}

impl Timespec {
    /// As people and programs write it, to the second: `2026-11-22T09:24:05Z` (days to civil date after H. Hinnant, "chrono-Compatible Low-Level
    /// Date Algorithms").
    pub fn utc(self) -> String {
        let (days, rest) = (self.secs.div_euclid(86_400), self.secs.rem_euclid(86_400));
        let shifted = days.saturating_add(719_468);
        let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * shifted_month + 2) / 5 + 1;
        let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }

    /// Reads what [`Timespec::utc`] writes, also without a zone (UTC is meant), with a space for the `T`, without seconds, or a day alone.
    pub fn parse_utc(text: &str) -> Option<Timespec> {
        let text = text.strip_suffix('Z').unwrap_or(text);
        let (date, clock) = text.split_once(['T', ' ']).unwrap_or((text, "0:0"));
        let number = |text: &str| text.parse::<u16>().ok().map(i64::from);
        let mut date = date.splitn(3, '-').map(number);
        let (year, month, day) = (date.next()??, date.next()??, date.next()??);
        let mut clock = clock.splitn(3, ':').map(number);
        let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next().unwrap_or(Some(0))?);
        if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
            return None;
        }
        let shifted_year = if month <= 2 { year - 1 } else { year };
        let era = shifted_year.div_euclid(400);
        let year_of_era = shifted_year.rem_euclid(400);
        let of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
        let of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year;
        let days = era * 146_097 + of_era - 719_468;
        Some(Timespec { secs: days * 86_400 + hour * 3600 + minute * 60 + second, nanos: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_told_as_the_calendar_has_them_and_read_again() {
        let at = |secs| Timespec { secs, nanos: 7 };
        assert_eq!(at(0).utc(), "1970-01-01T00:00:00Z");
        assert_eq!(at(-1).utc(), "1969-12-31T23:59:59Z");
        assert_eq!(at(951_827_696).utc(), "2000-02-29T12:34:56Z");
        for secs in [-1, 0, 951_827_696, 1_795_339_490, 4_102_444_799] {
            assert_eq!(Timespec::parse_utc(&at(secs).utc()), Some(Timespec { secs, nanos: 0 }));
        }
        assert_eq!(Timespec::parse_utc("2026-11-22 09:24"), Timespec::parse_utc("2026-11-22T09:24:00Z"));
        assert_eq!(Timespec::parse_utc("2026-11-22"), Timespec::parse_utc("2026-11-22T00:00:00Z"));
        for bad in ["", "yesterday", "2026-13-01", "2026-11", "2026-11-22T25:00", "2026-11-22T10"] {
            assert_eq!(Timespec::parse_utc(bad), None, "{bad}");
        }
    }
}
