//! IOzone in its throughput mode (its documentation: `IOzone_msword_98.pdf`; what it prints: `throughput_test` in iozone.c).

use super::Claim;
use crate::crew::Share;
use crate::data::{Action, DataPlan, Order};
use std::path::Path;

/// The command line of one phase.
pub fn arguments(plan: &DataPlan, root: &Path, action: Action) -> Vec<String> {
    let random = matches!(plan.order, Order::Random { .. });
    let test = match (random, action) {
        (true, _) => "2",
        (false, Action::Write) => "0",
        (false, Action::Read) => "1",
    };
    let mut line: Vec<String> = vec!["iozone".into(), "-i".into(), test.into()];
    line.extend(["-t".into(), plan.threads.to_string()]);
    line.extend(["-s".into(), format!("{}k", plan.thread_bytes >> 10)]);
    line.extend(["-r".into(), format!("{}k", plan.record_bytes >> 10)]);
    // Files stay for the next phase, nothing is measured twice, and all of it is done: without -x everybody stops when the first is ready.
    line.extend(["-w".into(), "-+n".into(), "-x".into()]);
    if plan.counts_fsync {
        line.extend(["-e".into(), "-c".into()]);
    }
    if plan.is_direct {
        line.push("-I".into());
    }
    line.push("-F".into());
    line.extend(plan.paths(root, Share::WHOLE).iter().map(|path| path.display().to_string()));
    line
}

/// What it did, from the line `Children see throughput for`, the sum of what each did in its own time, which is the figure that the papers
/// tell. Random tests do all records once.
pub fn claim(said: &str, plan: &DataPlan, action: Action) -> Option<Claim> {
    let wanted = match (plan.order, action) {
        (Order::Sequential, Action::Write) => "initial writers",
        (Order::Sequential, Action::Read) => "readers",
        (Order::Random { .. }, Action::Write) => "random writers",
        (Order::Random { .. }, Action::Read) => "random readers",
    };
    let kibibytes = said.lines().find_map(|line| {
        let rest = line.trim().strip_prefix("Children see throughput for")?;
        let (name, rate) = rest.split_once('=')?;
        let name = name.trim().trim_start_matches(|character: char| character.is_ascii_digit()).trim();
        let mut words = rate.split_whitespace();
        let (number, unit) = (words.next()?.parse::<f64>().ok()?, words.next()?);
        (name == wanted && unit.eq_ignore_ascii_case("kb/sec")).then_some(number)
    })?;
    let seconds = plan.bytes() as f64 / 1024.0 / kibibytes;
    let operations = plan.bytes() / plan.record_bytes;
    (kibibytes > 0.0).then_some(Claim { operations, bytes: plan.bytes(), seconds, ..Claim::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Files;

    /// As iozone.c prints them: a number of two places, tabs, and kB of 1024 bytes.
    const PRINTED: &str = "\n\n\tChildren see throughput for  4 initial writers \t=  302980.50 kB/sec\n\
        \tParent sees throughput for  4 initial writers \t=  302805.03 kB/sec\n\
        \tMin throughput per process \t\t\t=   75000.00 kB/sec\n\n\
        \tChildren see throughput for  4 readers \t\t=  409600.00 kB/sec\n\
        \tChildren see throughput for 4 re-readers \t=    8256.41 kB/sec\n\
        \tChildren see throughput for 4 random readers \t=    1998.40 kB/sec\n\
        \tChildren see throughput for 4 random writers \t=    1024.00 kB/sec\n";

    fn plan(order: Order) -> DataPlan {
        DataPlan {
            threads: 4,
            files: Files::PerThread,
            order,
            record_bytes: 4096,
            thread_bytes: 1 << 20,
            depth: 1,
            is_direct: true,
            counts_fsync: true,
            time_max: None,
        }
    }

    #[test]
    fn what_iozone_prints_is_understood() {
        let rate = |order, action| {
            claim(PRINTED, &plan(order), action).map(|claim| claim.bytes as f64 / claim.seconds / 1024.0)
        };
        let near = |found: Option<f64>, wanted: f64| (found.unwrap() - wanted).abs() < 1e-6;
        assert!(near(rate(Order::Sequential, Action::Write), 302_980.5));
        assert!(near(rate(Order::Sequential, Action::Read), 409_600.0));
        assert!(near(rate(Order::Random { seed: 1 }, Action::Read), 1998.4));
        assert!(near(rate(Order::Random { seed: 1 }, Action::Write), 1024.0));
        assert!(claim("iozone: open: No space left", &plan(Order::Sequential), Action::Read).is_none());
        let line = arguments(&plan(Order::Sequential), Path::new("DIR"), Action::Write).join(" ");
        assert_eq!(
            line,
            "iozone -i 0 -t 4 -s 1024k -r 4k -w -+n -x -e -c -I -F DIR/data.0 DIR/data.1 DIR/data.2 DIR/data.3"
        );
    }
}
