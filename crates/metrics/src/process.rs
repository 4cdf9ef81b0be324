//! What every process can say of itself, under the names that Prometheus' own libraries use.

use crate::text::{MetricType::Counter, MetricType::Gauge, Text};
use rustix::process::{Resource, getrlimit};
use std::fs;

/// Writes it; what cannot be found out is left out.
pub fn tell(text: &mut Text) {
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    if let Some(stat) = fs::read_to_string("/proc/self/stat").ok().as_deref().and_then(fields) {
        let cpu = (stat.user_ticks + stat.system_ticks) as f64 / ticks;
        text.single("process_cpu_seconds_total", Counter, "Processor time used, seconds.", cpu);
        text.single("process_threads", Gauge, "Threads.", stat.threads);
        text.single("process_virtual_memory_bytes", Gauge, "Address space, bytes.", stat.virtual_bytes);
        let resident = stat.resident_pages * rustix::param::page_size() as u64;
        text.single("process_resident_memory_bytes", Gauge, "Memory in use, bytes.", resident);
        if let Some(boot) = boot_time() {
            let started = boot as f64 + stat.start_ticks as f64 / ticks;
            let help = "When it was started, seconds since 1970.";
            text.single("process_start_time_seconds", Gauge, help, started);
        }
    }
    if let Ok(entries) = fs::read_dir("/proc/self/fd") {
        // One of them is that of the listing.
        let open = entries.count().saturating_sub(1);
        text.single("process_open_fds", Gauge, "Open descriptors.", open);
    }
    if let Some(most) = getrlimit(Resource::Nofile).current {
        text.single("process_max_fds", Gauge, "Most descriptors that may be open.", most);
    }
}

struct Stat {
    user_ticks: u64,
    system_ticks: u64,
    threads: u64,
    start_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

/// The fields of `/proc/PID/stat`, see proc_pid_stat(5). The name, which may have spaces, ends with the last parenthesis.
fn fields(line: &str) -> Option<Stat> {
    let (_, rest) = line.rsplit_once(") ")?;
    let words: Vec<&str> = rest.split_whitespace().collect();
    // The manual counts from 1, and the first word here is its third.
    let field = |number: usize| words.get(number - 3).and_then(|word| word.parse().ok());
    Some(Stat {
        user_ticks: field(14)?,
        system_ticks: field(15)?,
        threads: field(20)?,
        start_ticks: field(22)?,
        virtual_bytes: field(23)?,
        resident_pages: field(24)?,
    })
}

/// When this machine was started, seconds since 1970.
fn boot_time() -> Option<u64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_and_parentheses_is_read_past() {
        let line = "12 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 140 150 16 17 18 19 20 21 220 230 240 25";
        let found = fields(line).map(|stat| (stat.user_ticks, stat.system_ticks, stat.threads));
        assert_eq!(found, Some((140, 150, 20)));
        assert!(fields("12 (short) S 1").is_none() && fields("").is_none());
    }

    #[test]
    fn this_process_tells_of_itself() {
        let mut text = Text::default();
        tell(&mut text);
        let text = text.finish();
        assert!(text.contains("\nprocess_resident_memory_bytes ") && text.contains("\nprocess_open_fds "));
    }
}
